"""An optimizer of any class, whose own step updates each parameter on the device that has it.

A worker gives the optimizer's own code one parameter at a time: a twin of the optimizer with that
parameter alone, its gradient, its state from shared memory and the hyper-parameters of its group as
they are now. So what is computed is what the class computes, to the last bit, options included.
That is right for optimizers that treat every parameter by itself; `twins` finds the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnnplace.execution.training.group_options import GroupOptions
from gnnplace.execution.training.state_layout import Layout
from gnnplace.execution.training.twins import (
    alone,
    cloned,
    refuse_odd_steps,
    refused,
    try_step,
    twin_of,
)
from gnnplace.tracing.operations import mean_gradient
from gnnplace.tracing.optimizers import Optimizer


@dataclass(frozen=True)
class OwnStep(Optimizer):
    """An optimizer that is captured as its own step.

    Attributes:
        optimizer: The optimizer, which stays as it is.
        parameters: Its parameters by their names in the model.
        group: The number of each parameter's group, by name.
        options: Of each group.
        layouts: Of the state of each parameter, filled while a model is captured.
    """

    optimizer: torch.optim.Optimizer
    parameters: Mapping[str, nn.Parameter]
    group: Mapping[str, int]
    options: tuple[GroupOptions, ...]
    layouts: dict[str, Layout] = field(default_factory=dict)

    def constants_now(self, group: Mapping[str, Any], number: int) -> tuple[float, ...]:
        """The numbers of a group as they are now.

        Raises:
            UnsupportedError: another option has changed.
        """
        return self.options[number].read(group)

    def states(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        """The state that its step makes; a trial on a copy finds which.

        Raises:
            UnsupportedError: a state that changes its form, or holds what is neither tensor nor
                number.
        """
        made = self.optimizer.state.get(self.parameters[name], {})
        twin, copy = alone(self.optimizer, parameter, self.group[name], made)
        forms = []
        for trial in range(2):
            try_step(self.optimizer, twin, [copy], trial)
            forms.append(Layout.of(twin.state[copy], type(twin).__name__))
        if forms[0].spec != forms[1].spec:
            raise refused(self.optimizer, "its state has another form after the second step")
        self.layouts[name] = forms[0]
        begun = Layout.of(made, type(twin).__name__)
        given = made if begun.spec == forms[0].spec else None
        return forms[0].tensors(given, twin.state[copy])

    def update_of(self, name: str) -> Callable[..., None]:
        """The optimizer's step for one parameter."""
        made = self.optimizer.state.get(self.parameters[name], {})
        number = self.group[name]
        layout, options = self.layouts[name], self.options[number]
        return ParameterStep(self.optimizer, number, layout, options, cloned(made))


class ParameterStep:
    """The step of an optimizer on one parameter, wherever that lies.

    Args:
        optimizer: The optimizer; a twin of it does the step.
        group: The number of the parameter's group.
        layout: Of its state.
        options: Of its group.
        made: State that the optimizer makes when it is made.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: int,
        layout: Layout,
        options: GroupOptions,
        made: Mapping[str, Any],
    ) -> None:
        self._optimizer, self._group, self._layout, self._made = optimizer, group, layout, made
        self._options = options
        self._twin: torch.optim.Optimizer | None = None
        self._written: tuple[float, ...] = ()

    def __call__(self, parameter: torch.Tensor, gradients: list[torch.Tensor], *rest: Any) -> None:
        """Updates the parameter and its state.

        Args:
            parameter: Changed in place.
            gradients: One, or one for each micro-batch.
            *rest: Whether there is a state already, its tensors, the constants of the group.
        """
        count = len(rest) - len(self._options.values)
        started, *tensors = rest[:count]
        twin = self._twin_of(parameter)
        if rest[count:] != self._written:
            self._options.write(twin.param_groups[0], rest[count:])
            self._written = rest[count:]
        begun = bool(started.item())
        twin.state[parameter] = self._layout.state(tensors) if begun else self._first(parameter)
        parameter.grad = mean_gradient(gradients)
        type(twin).step(twin)  # type: ignore[call-arg]
        parameter.grad = None
        self._layout.keep(twin.state.pop(parameter), tensors)
        started.fill_(1)

    def _first(self, parameter: torch.Tensor) -> dict[str, Any]:
        """The state that a parameter has before its first step."""
        return {key: on(leaf, parameter.device) for key, leaf in cloned(self._made).items()}

    def _twin_of(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        if self._twin is None:
            self._twin = twin_of(self._optimizer, [(self._group, parameter)])
        return self._twin


def on(value: Any, device: torch.device) -> Any:
    """A leaf of a state where its parameter lies; numbers stay on the host."""
    moves = isinstance(value, torch.Tensor) and value.dim() > 0
    return value.to(device) if moves else value


def own_update(*tensors: Any) -> None:
    """Stands for an update in a captured program until `OwnStep.update_of` takes its place."""
    raise AssertionError("the optimizer's own step was not put in")


def own_step(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    group: Mapping[str, int],
) -> OwnStep:
    """A captured optimizer of any class.

    Args:
        optimizer: Of these parameters.
        parameters: By their names in the model.
        group: The number of each parameter's group.

    Raises:
        UnsupportedError: a step that cannot be taken parameter by parameter; says why.
    """
    refuse_odd_steps(optimizer)
    options = tuple(GroupOptions(group) for group in optimizer.param_groups)
    if len({len(one.values) for one in options}) > 1:
        raise refused(optimizer, "its groups have different kinds of options")
    name, first = type(optimizer).__name__, options[0].values
    return OwnStep(name, own_update, (), first, optimizer, parameters, group, options)
