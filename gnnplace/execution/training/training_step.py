"""`compile`: a placed training step to call in a training loop of one's own.

::

    step = gnnplace.compile(model, "placement.json", torch.optim.AdamW(model.parameters(), lr=3e-4))
    for batch in batches:
        loss = step(batch)
    model.load_state_dict(step.state_dict())
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from gnnplace.errors import InputError, MismatchError, UnsupportedError
from gnnplace.execution.result import StepTiming
from gnnplace.execution.setting import execution_mode
from gnnplace.execution.structure import Plan, read_plan
from gnnplace.execution.training.batches import Batches
from gnnplace.execution.training.live_constants import (
    LiveConstants,
    with_live_constants,
    with_state,
)
from gnnplace.execution.training.placed_step import PlacedStep
from gnnplace.execution.training.torch_optimizers import (
    captured_method,
    group_constants,
    group_of,
    initial_state,
    method_groups,
)
from gnnplace.execution.training.training_file import read_training, write_training
from gnnplace.placement import Placement
from gnnplace.problem import Problem
from gnnplace.tracing import load, microbatched
from gnnplace.tracing.models import capture_workload
from gnnplace.tracing.optimizers import Optimizer
from gnnplace.tracing.optimizers import optimizer as find_optimizer
from gnnplace.tracing.program import Program
from gnnplace.tracing.step import Inputs
from gnnplace.zoo import Workload

KEPT = ("parameter", "buffer")


def compile(
    model: nn.Module | str,
    placement: Placement | str | Path,
    optimizer: str | Optimizer | torch.optim.Optimizer = "sgd",
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    inputs: Inputs | None = None,
    problem: Problem | None = None,
    microbatches: int = 1,
    groups: int | None = None,
    dtype: str = "float32",
    mode: str = "auto",
    transport: str = "shm",
    timeout: float = 120.0,
    accept_other_loss: bool = False,
) -> TrainingStep:
    """A training step that runs where a placement says.

    Args:
        model: A module, or what `capture` takes by name. It is left as it is; its parameters are
            where training begins.
        placement: A placement, or the path of its file.
        optimizer: A `torch.optim.SGD` or `AdamW` of the model's parameters, whose `param_groups`
            are read before every step (so that learning-rate schedulers work), or "sgd", "adamw",
            or one of `gnnplace.tracing.optimizers`.
        loss: As `capture` takes it; a model called by name has its own.
        inputs: Example batch; without one the first batch is captured.
        problem: That the placement is of; needed for one in memory whose model was grouped or cut
            otherwise than the next two say.
        microbatches: The microbatches of a placement in memory without its problem.
        groups: The same.
        dtype: "float32" or "bfloat16"; a placement file says it itself.
        mode: "measured", "emulated" or "auto"; see `execute`.
        transport: "shm" or "gloo".
        timeout: Seconds without progress after which a step is given up.
        accept_other_loss: Cut the batch also where the loss of its shares is another one; a
            placement file that was made so says it itself.

    Raises:
        OtherLossError: the loss of the micro-batches is another one; names the op.
        FormatError, MismatchError: a placement of another model or cluster.
        InputError, UnsupportedError, CaptureError: model or optimizer that cannot be placed.
    """
    plan = read_plan(placement, problem, microbatches=microbatches, groups=groups, dtype=dtype)
    if accept_other_loss:
        plan = replace(plan, accept_other_loss=True)
    workload = _workload(model, inputs, loss)
    step = TrainingStep(workload.model, workload.loss, plan, problem, optimizer)
    step.options = {"mode": mode, "transport": transport, "timeout": timeout}
    if workload.inputs:
        step.prepare(workload.inputs)
    return step


def _workload(
    model: nn.Module | str, inputs: Inputs | None, loss: Callable[..., torch.Tensor] | None
) -> Workload:
    if isinstance(model, str):
        return load(model)
    given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    return Workload(type(model).__name__, model, () if given is None else given, loss)  # type: ignore[arg-type]


class TrainingStep:
    """Trains a model step by step on the devices of a placement; made by `compile`.

    Attributes:
        param_groups: Hyper-parameters, as `torch.optim` has them; may be changed between steps.
        num_steps: Steps so far, those before a resume included.
        options: How workers run; see `PlacedStep`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        plan: Plan,
        problem: Problem | None,
        optimizer: str | Optimizer | torch.optim.Optimizer,
    ) -> None:
        self._model, self._loss, self._plan, self._problem = model, loss, plan, problem
        self._torch = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        self._method = captured_method(self._torch) if self._torch else find_optimizer(optimizer)  # type: ignore[arg-type]
        self.param_groups: list[dict[str, Any]] = (
            self._torch.param_groups if self._torch else method_groups(self._method)
        )
        self._constants = LiveConstants(self._method, len(self.param_groups))
        self.num_steps = 0
        self.options: dict[str, Any] = {}
        self._placed: PlacedStep | None = None
        self._batches: Batches | None = None

    def prepare(self, batch: Inputs) -> None:
        """Captures the step with a batch as its example and starts the workers."""
        if self._placed is not None:
            raise InputError("compile: the step is captured already; make another one")
        _check_loss(self._loss)
        given = (batch,) if isinstance(batch, torch.Tensor) else batch
        program, problem, placement = self.placed_program(given)
        options = dict(self.options)
        if options.get("mode", "auto") == "auto":
            options["mode"] = execution_mode(placement, problem)
        self._batches = Batches(program, given)
        self._placed = PlacedStep(program, problem, placement, **options)

    def placed_program(self, given: Inputs) -> tuple[Program, Problem, Placement]:
        """What the workers run, captured with a batch as its example; nothing is started."""
        whole = Workload(type(self._model).__name__, self._model, given, self._loss)  # type: ignore[arg-type]
        program = capture_workload(
            whole,
            self._plan.microbatches,
            optimizer=self._method,
            dtype=self._plan.dtype,
            accept_other_loss=self._plan.accept_other_loss,
        )
        problem, placement = self._plan.placed(program, self._problem)
        group = group_of(self._torch, self._model) if self._torch else {}
        program = with_live_constants(program, self._method, self._constants, group)
        program = with_state(microbatched(program, problem.microbatches), self._known_state())
        return program, problem, placement

    def _known_state(self) -> dict[str, torch.Tensor]:
        """State that a torch optimizer brings along, by value name."""
        if self._torch is None:
            return {}
        state = initial_state(self._torch, self._model, self._method)
        return {f"optimizer.{name}": tensor for name, tensor in state.items()}

    def __call__(self, batch: Inputs) -> torch.Tensor:
        """Trains on one batch.

        Args:
            batch: All of it, as `capture` takes inputs; of the shapes of the first one.

        Returns:
            Its loss before the update, a scalar without a graph.

        Raises:
            InputError: a batch of another shape, type or structure.
            ExecutionError: a worker died, failed or hung; the step is of no use any more.
        """
        if self._placed is None:
            self.prepare(batch)
        assert self._placed is not None
        assert self._batches is not None
        self._batches.load(batch, self._placed.tensors)
        for number, group in enumerate(self.param_groups):
            self._constants.set(number, group_constants(group))
        loss = self._placed.step(self.num_steps)
        self.num_steps += 1
        return torch.tensor(loss)

    def state_dict(self) -> OrderedDict[str, torch.Tensor]:
        """Parameters and buffers as they are now, copied, by the model's own names."""
        values = self._values()
        known = self._model.state_dict(keep_vars=True)
        return OrderedDict(
            (key, values.get(id(tensor), tensor).detach().clone()) for key, tensor in known.items()
        )

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Goes on from other parameters and buffers; the optimizer's state stays.

        Raises:
            MismatchError: a name is missing, unknown, or of another shape.
        """
        placed = self._ready("load_state_dict")
        values = self._values()
        known: dict[str, torch.Tensor] = dict(self._model.state_dict(keep_vars=True))
        odd = sorted(known.keys() ^ state.keys())
        odd += [key for key in known if key in state and known[key].shape != state[key].shape]
        if odd:
            raise MismatchError(f"state: {odd[0]!r} is not in both, or of another shape")
        for key, tensor in known.items():
            if id(tensor) in values:
                values[id(tensor)].copy_(state[key])
        placed.take()

    def save(self, path: str | Path) -> None:
        """Writes everything that training goes on from: a safetensors file, atomically."""
        placed = self._ready("save")
        placed.publish()
        kinds = {n: placed.program.inputs[n].kind for n in placed.tensors}
        tensors = {n: t for n, t in placed.tensors.items() if kinds[n] in (*KEPT, "optimizer")}
        write_training(path, tensors, self.num_steps, self._constants_now())

    def resume(self, path: str | Path) -> None:
        """Goes on from a file that `save` wrote, on whatever placement of the same model.

        Raises:
            FormatError: no such file, or not one of these.
            MismatchError: it is of another model or optimizer.
        """
        placed = self._ready("resume")
        kinds = {n: placed.program.inputs[n].kind for n in placed.tensors}
        mine = {n: t for n, t in placed.tensors.items() if kinds[n] in (*KEPT, "optimizer")}
        tensors, steps, groups = read_training(path)
        odd = sorted(mine.keys() ^ tensors.keys())
        odd += [n for n in mine if n in tensors and mine[n].shape != tensors[n].shape]
        if odd or len(groups) != len(self.param_groups):
            what = odd[0] if odd else "groups of parameters"
            raise MismatchError(f"{path}: {what} does not fit this model and optimizer")
        for name, tensor in tensors.items():
            mine[name].copy_(tensor)
        placed.take()
        self.num_steps = steps
        for group, constants in zip(self.param_groups, groups, strict=True):
            group.update(constants)

    def timing(self) -> StepTiming:
        """Clocks and timeline of the last step."""
        return self._ready("timing").timing()

    def close(self) -> None:
        """Ends the workers; the state can still be read. May be called again."""
        if self._placed is not None:
            self._placed.close()

    def __enter__(self) -> TrainingStep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ready(self, what: str) -> PlacedStep:
        if self._placed is None:
            raise InputError(f"{what}: nothing is captured yet; give inputs=... or make a step")
        return self._placed

    def _values(self) -> dict[int, torch.Tensor]:
        """Tensors of the workers by the identity of the model's tensor."""
        placed = self._placed
        if placed is None:
            return {}
        placed.publish()
        named: dict[str, dict[str, torch.Tensor]] = {
            "parameter": dict(self._model.named_parameters()),
            "buffer": dict(self._model.named_buffers()),
        }
        return {
            id(named[entry.kind][entry.source]): placed.tensors[name]
            for name, entry in placed.program.inputs.items()
            if entry.kind in KEPT and entry.source in named[entry.kind]
        }

    def _constants_now(self) -> list[dict[str, Any]]:
        numbers = (int, float, tuple, list)
        names = ("lr", "momentum", "betas", "eps", "weight_decay")
        return [
            {name: group[name] for name in names if isinstance(group.get(name), numbers)}
            for group in self.param_groups
        ]


def _check_loss(loss: Callable[..., torch.Tensor] | None) -> None:
    """Refuse a loss whose state nobody could get back by the model's names."""
    if isinstance(loss, nn.Module):
        trained = [name for name, p in loss.named_parameters() if p.requires_grad]
        if trained:
            raise UnsupportedError(
                f"compile: the loss has a parameter {trained[0]!r} of its own; make the loss a "
                "part of the model, so that it is trained and saved with it"
            )
