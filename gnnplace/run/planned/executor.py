"""Runs a rank's row of actions: passes, and messages that keep their order on every channel.

A receive is posted when its turn in the row comes, and the pass that reads it waits for it. Sends
are waited for at the end of the step. Tensors between two stages of one rank need no message. The
autograd graph of every stage begins at its own leaves, so that its backward pass ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from gnnplace.plans import (
    FORWARD,
    FULL,
    INPUT,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    WEIGHT,
    Action,
)
from gnnplace.run.planned.passes import StageCode
from gnnplace.run.planned.seats import Seat
from gnnplace.run.planned.weights import Queue

Key = tuple[int, int]  # stage, micro-batch
Tensors = tuple[torch.Tensor, ...]


@dataclass(eq=False)
class _Arriving:
    """Tensors on their way."""

    tensors: Tensors
    works: list[dist.Work]

    def wait(self) -> Tensors:
        for work in self.works:
            work.wait()
        return self.tensors


@dataclass(eq=False)
class _SavedPass:
    """The state that a forward pass leaves for its backward pass."""

    leaves: Tensors
    outputs: Tensors


@dataclass(eq=False)
class Executor:
    """Runs one step after the other.

    Attributes:
        seat: the place of this process in the plan.
        row: its actions, messages included.
        ranks: the pipeline rank of every stage.
        code: The code of this process's stages.
        scale: what each loss is multiplied by.
        notify: is called before every action.
        factor: The factor of the loss in the backward passes, beside `scale`.
        weights: what the loss of every micro-batch weighs; empty: all alike.
    """

    seat: Seat
    row: tuple[Action, ...]
    ranks: tuple[int, ...]
    code: dict[int, StageCode]
    scale: float
    notify: Callable[[Action | None], None] = lambda action: None
    inputs: Sequence[Tensors] = ()
    losses: list[torch.Tensor] = field(default_factory=list)
    causes: tuple[int, int, int] = (0, 0, 0)
    factor: float = 1.0
    weights: Sequence[float] = ()
    _forward: dict[Key, _Arriving] = field(default_factory=dict)
    _backward: dict[Key, _Arriving] = field(default_factory=dict)
    _out: dict[tuple[str, Key], Tensors] = field(default_factory=dict)
    _saved: dict[Key, _SavedPass] = field(default_factory=dict)
    _queues: dict[Key, Queue] = field(default_factory=dict)
    _sent: list[tuple[Tensors, list[dist.Work]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.apart = {(a.chunk, a.microbatch) for a in self.row if a.kind == INPUT}
        self.actions = {
            FORWARD: self._run_forward,
            FULL: self._run_full,
            INPUT: self._run_backward,
            WEIGHT: self._run_weight,
            SEND_F: self._send,
            SEND_B: self._send,
            RECV_F: self._receive_forward,
            RECV_B: self._receive_backward,
        }

    def run(
        self, inputs: Sequence[Tensors], causes: tuple[int, int, int]
    ) -> torch.Tensor:
        """Run one step, which leaves gradients in the leaves; return the sum of the losses here.

        Args:
            inputs: tensors of every micro-batch.
            causes: What random numbers depend on: seed, step, and number of the first micro-batch.
        """
        self.inputs = inputs
        self.causes = causes
        self.losses = []
        for action in self.row:
            self.notify(action)
            self.actions[action.kind](action)
        for _, works in self._sent:
            for work in works:
                work.wait()
        self._sent.clear()
        total = torch.zeros((), dtype=torch.float64, device=self.seat.device)
        for loss in self.losses:
            total += loss
        return total

    def _run_forward(self, action: Action) -> None:
        key = (action.chunk, action.microbatch)
        code = self.code[action.chunk]
        if action.chunk:
            arrived = self._forward.pop(key).wait()
        else:
            arrived = ()
        leaves = tuple(
            x.detach().requires_grad_(learns)
            for x, learns in zip(arrived, code.gradients, strict=True)
        )
        if key in self.apart:
            queue = self._queues.setdefault(key, Queue())
        else:
            queue = None
        seed, step, first = self.causes
        code.parameters.enter(code.piece.parameters)
        outputs = code.forward(
            leaves,
            self.inputs[action.microbatch],
            queue,
            (seed, step, first + action.microbatch),
        )
        code.parameters.leave(code.piece.parameters)
        self._saved[key] = _SavedPass(leaves, outputs)
        if action.chunk + 1 == len(self.ranks):
            self.losses.append(outputs[0].detach() * self._weight(action))
        else:
            self._hand_over(SEND_F, key, 1, tuple(x.detach() for x in outputs))

    def _weight(self, action: Action) -> float:
        if self.weights:
            return self.weights[action.microbatch]
        return 1.0

    def _hand_over(self, kind: str, key: Key, step: int, tensors: Tensors) -> None:
        """Hand tensors to a stage on this rank, or to the send that follows."""
        stage, m = key
        if self.ranks[stage + step] == self.seat.rank:
            if step == 1:
                arriving = self._forward
            else:
                arriving = self._backward
            arriving[stage + step, m] = _Arriving(tensors, [])
        else:
            self._out[kind, key] = tensors

    def _run_full(self, action: Action) -> None:
        self._run_backward(action)
        queue = self._queues.pop((action.chunk, action.microbatch), None)
        if queue is not None:
            queue.run()
        code = self.code[action.chunk]
        code.parameters.reduce(code.piece.parameters)

    def _run_weight(self, action: Action) -> None:
        self._queues.pop((action.chunk, action.microbatch)).run()
        code = self.code[action.chunk]
        code.parameters.reduce(code.piece.parameters)

    def _run_backward(self, action: Action) -> None:
        key = (action.chunk, action.microbatch)
        code = self.code[action.chunk]
        saved = self._saved.pop(key)
        if action.chunk + 1 == len(self.ranks):
            scale = self.scale * self.factor * self._weight(action)
            gradients: Tensors = (torch.full_like(saved.outputs[0], scale),)
            outputs = saved.outputs
        else:
            flags = [code.graph.values[v].gradient for v in code.piece.leaving]
            outputs = tuple(
                x for x, learns in zip(saved.outputs, flags, strict=True) if learns
            )
            gradients = self._backward.pop(key).wait()
        pairs = [
            (x, g) for x, g in zip(outputs, gradients, strict=True) if x.requires_grad
        ]
        code.parameters.enter(code.piece.parameters)
        if pairs:
            torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
        code.parameters.leave(code.piece.parameters)
        if action.chunk:
            input_gradients = tuple(
                torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                for leaf in saved.leaves
                if leaf.requires_grad
            )
            self._hand_over(SEND_B, key, -1, input_gradients)

    def _send(self, action: Action) -> None:
        tensors = self._out.pop((action.kind, (action.chunk, action.microbatch)))
        rank = self.ranks[action.chunk + (1 if action.kind == SEND_F else -1)]
        messages = tuple(tensor.contiguous() for tensor in tensors)
        works = []
        for target in self.seat.targets(rank):
            works += [
                w for w in (dist.isend(x, target) for x in messages) if w is not None
            ]
        self._sent.append((messages, works))

    def _receive_forward(self, action: Action) -> None:
        code = self.code[action.chunk]
        values = code.piece.entering
        rank = self.ranks[action.chunk - 1]
        self._forward[action.chunk, action.microbatch] = self._arriving(
            code, values, rank, leaves=False
        )

    def _receive_backward(self, action: Action) -> None:
        code = self.code[action.chunk]
        values = [v for v in code.piece.leaving if code.graph.values[v].gradient]
        rank = self.ranks[action.chunk + 1]
        self._backward[action.chunk, action.microbatch] = self._arriving(
            code, values, rank, leaves=True
        )

    def _arriving(
        self, code: StageCode, values: Sequence[int], rank: int, *, leaves: bool
    ) -> _Arriving:
        room = tuple(
            torch.empty(
                code.room(v, leaves=leaves),
                dtype=code.graph.values[v].dtype,
                device=self.seat.device,
            )
            for v in values
        )
        source = self.seat.sources(rank)
        works = [w for w in (dist.irecv(x, source) for x in room) if w is not None]
        return _Arriving(room, works)
