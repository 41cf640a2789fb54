"""Optimizers of one's own: one that can be placed, and some that cannot, each for a reason."""

from __future__ import annotations

import torch


class Own(torch.optim.Optimizer):
    """A base with one option."""

    def __init__(self, parameters, lr=0.1, **options):
        super().__init__(parameters, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.one(group, parameter, self.state[parameter])


class Lion(Own):
    """Signs of a mean, made anew in every step; the state counts in a plain number."""

    def one(self, group, parameter, state):
        mean = state.get("mean", torch.zeros_like(parameter))
        state["steps"] = state.get("steps", 0) + 1
        parameter.add_((0.9 * mean + 0.1 * parameter.grad).sign_(), alpha=-group["lr"])
        state["mean"] = 0.99 * mean + 0.01 * parameter.grad


class Coupled(Own):
    """Divides by the norm of all gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        total = sum(p.grad.norm() for p in parameters)
        for parameter in parameters:
            parameter.sub_(parameter.grad / total)


class Noisy(Own):
    def one(self, group, parameter, state):
        parameter.sub_(parameter.grad + torch.randn_like(parameter))


class CountsInItsGroup(Own):
    def __init__(self, parameters):
        super().__init__(parameters, count=0)

    def one(self, group, parameter, state):
        group["count"] += 1
        parameter.sub_(parameter.grad)


class CountsInItself(Own):
    count = 0

    def one(self, group, parameter, state):
        self.count += 1
        parameter.sub_(parameter.grad)


class Remembers(Own):
    def one(self, group, parameter, state):
        state.setdefault("past", []).append(parameter.grad.clone())
        parameter.sub_(parameter.grad)


class Replaces(Own):
    def one(self, group, parameter, state):
        parameter.data = parameter.data - parameter.grad


class KeepsAnObject(Own):
    def one(self, group, parameter, state):
        state["generator"] = torch.Generator()
        parameter.sub_(parameter.grad)
