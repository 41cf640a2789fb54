"""`compile`: a model, a placement and an optimizer become a step for a training loop of one's own.

::

    with gnnplace.compile(model, "placement.json", optimizer, loss=loss) as step:
        for batch in batches:
            optimizer.zero_grad()
            step.loss(batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

or, where nothing happens between backward and update, `step(batch)` in the place of these lines.

`TrainingStep.save` writes a file to resume from: safetensors, with the number of steps and the
hyper-parameters in its header.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from gnnplace.errors import FormatError, InputError, MismatchError
from gnnplace.files import write_whole
from gnnplace.problem import Given, Placement, Problem
from gnnplace.run.placed import (
    AUTO,
    ExecutionOptions,
    StepTiming,
    UnboundPlacement,
    execution_mode,
    read_unbound_placement,
)
from gnnplace.run.training.attachment import Attachment, Redirection
from gnnplace.run.training.batches import Batches
from gnnplace.run.training.placed_step import PlacedStep
from gnnplace.run.training.torch_optimizers import (
    capture_method,
    check_options,
    find_groups,
    get_constants,
    initial_state,
    method_groups,
)
from gnnplace.run.training.updates import (
    GradientHandover,
    GradientStores,
    LiveConstants,
    find_updated_parameters,
    with_backward,
    with_live_constants,
    with_state,
)
from gnnplace.tracing import (
    MEMORY,
    STATE,
    Fingerprint,
    Inputs,
    Optimizer,
    Program,
    as_inputs,
    capture_workload,
    check_loss,
    initialise_lazy,
    is_uninitialised,
    load,
    note_attribute_reads,
    refuse_meta,
    with_program_microbatches,
)
from gnnplace.tracing import make_optimizer as find_optimizer
from gnnplace.zoo import Workload

FORMAT = "gnnplace-training"
VERSION = "1"


class TrainingStep:
    """Trains a model step by step on the devices of a placement; made by `compile`.

    Attributes:
        num_steps: Batches so far, those before a resume included; random ops depend on it.
        options: How workers run: mode, transport and timeout.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        plan: UnboundPlacement,
        problem: Problem | None,
        optimizer: str | Optimizer | torch.optim.Optimizer | None,
    ) -> None:
        self._model, self._loss, self._plan, self._problem = model, loss, plan, problem
        self._torch = (
            optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        )
        self._updates = optimizer is not None
        self._method = _method(optimizer, model)
        self._own_groups = [] if self._torch else method_groups(self._method)
        self._constants = LiveConstants(self._method, len(self.param_groups))
        self.num_steps = 0
        self.options = ExecutionOptions()
        self._placed: PlacedStep | None = None
        self._attachment: Attachment | None = None
        self._batches: Batches | None = None
        self._passes = 0
        self._redirection = (
            Redirection(self._torch, self.update) if self._torch else None
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the hyper-parameters, as `torch.optim` has them.

        They may be changed between steps.
        """
        return self._torch.param_groups if self._torch else self._own_groups

    def prepare(self, batch: Inputs) -> None:
        """Capture the step with a batch as its example and start the workers."""
        if self._placed is not None:
            raise InputError("compile: the step is captured already; make another one")
        check_loss(self._loss, self._model)
        inputs = as_inputs(batch, self._model)
        refuse_meta(self._model, inputs, "compile")
        self._cast = _autocast()
        with note_attribute_reads(self._model) as read:
            program, problem, placement = self.capture_placed_program(inputs)
        options, mode = self.options, self.options.mode
        if mode == AUTO:
            mode = execution_mode(placement, problem)
        self._batches = Batches(program, inputs)
        self._placed = PlacedStep(
            program,
            problem,
            placement,
            mode=mode,
            transport=options.transport,
            timeout=options.timeout,
        )
        self._attachment = Attachment(
            self._model, self._torch, self._method, self._placed, self._loss
        )
        follows = self._attachment.follows
        self._recorded = Fingerprint(
            self._model, self._torch, read, self._loss, follows=follows
        )

    def _follow(self) -> Attachment:
        """Follow what changed in model and optimizer since the step was captured.

        Raises:
            MismatchError: names what cannot be followed.
        """
        attachment = self._attachment
        assert attachment is not None
        changes = self._recorded.changes()
        for kind, words in changes:
            if kind == "training":
                raise MismatchError(
                    f"step: {words}; to evaluate, call the model: the step trains"
                )
            if kind not in (MEMORY, STATE):
                raise MismatchError(
                    f"step: {words}; close the step and compile another one"
                )
        if any(kind == MEMORY for kind, _ in changes):
            attachment.rebind()
        if any(kind == STATE for kind, _ in changes):
            attachment.read()
        if changes:
            self._recorded.take()
        attachment.follow()
        return attachment

    def capture_placed_program(
        self, inputs: Inputs
    ) -> tuple[Program, Problem, Placement]:
        """Return what the workers run, captured with a batch as its example; nothing is started."""
        workload = Workload(type(self._model).__name__, self._model, inputs, self._loss)
        program = capture_workload(
            workload,
            self._plan.microbatches,
            optimizer=self._method,
            dtype=self._plan.dtype,
            accept_other_loss=self._plan.accept_other_loss,
        )
        problem, placement = self._plan.bind(program, self._problem)
        group = find_groups(self._torch, self._model) if self._torch else {}
        self._gradients = GradientStores(find_updated_parameters(program))
        program = with_live_constants(
            program, self._method, self._constants, group, self._gradients
        )
        program = with_state(
            with_program_microbatches(program, problem.microbatches),
            self._find_known_state(),
        )
        return program, problem, placement

    def _find_known_state(self) -> dict[str, torch.Tensor]:
        """Return the state that a torch optimizer brings along, by value name."""
        if self._torch is None:
            return {}
        state = initial_state(self._torch, self._model, self._method)
        return {f"optimizer.{name}": tensor for name, tensor in state.items()}

    def __call__(self, batch: Inputs) -> torch.Tensor:
        """Train on one batch: forward, backward and update in one pass.

        Args:
            batch: All of it, as `capture` takes inputs; of the shapes of the first one.

        Returns:
            Its loss before the update, a scalar without a graph.

        Raises:
            InputError: a batch of another shape, type or structure, or no optimizer.
            MismatchError: model or optimizer changed since the capture; names what.
            ExecutionError: a worker died, failed or hung; the step is of no use any more.
        """
        self._check_updates()
        self._load(batch)
        self._gradients.update_at_once()
        self._set_constants()
        loss = self._pass()
        self._take_step()
        return loss

    def loss(self, batch: Inputs) -> torch.Tensor:
        """Return the loss of a batch, whose `backward()` gives the parameters their gradients.

        The workers run forward and backward now; `backward()` only adds what they found to the
        parameters' `.grad`, times the gradient of this loss.

        Args:
            batch: All of it, as `capture` takes inputs; of the shapes of the first one.

        Returns:
            A scalar with a graph.

        Raises:
            InputError: a batch of another shape, type or structure.
            MismatchError: model or optimizer changed since the capture; names what.
            UnsupportedError: parameters are trained in another type than the model has.
            ExecutionError: a worker died, failed or hung; the step is of no use any more.
        """
        trained = self._load(batch).trained()
        number, turn = self._gradients.fill(trained), self._passes + 1
        loss = self._pass()

        def begin() -> None:
            if self._passes != turn:
                raise InputError(
                    "loss: its gradients were handed over already, or replaced by those of a "
                    "later batch; call backward() once, before the next loss(batch)"
                )
            self._passes += 1

        return with_backward(
            loss, GradientHandover(self._gradients, trained, number, begin)
        )

    def update(self) -> None:
        """Update the parameters by their `.grad`, on the workers; `optimizer.step()` calls it.

        Raises:
            InputError: no optimizer, or no batch so far.
            ExecutionError: a worker died, failed or hung.
        """
        self._check_updates()
        placed = self._ready("update")
        self._gradients.take(self._follow().trained())
        self._set_constants()
        placed.update()
        self._take_step()

    def refresh(self) -> None:
        """Bring the model up to date where the workers' tensors are not its own (GPUs, bfloat16).

        The model's own call, `state_dict()` and the optimizer's do so by themselves.
        """
        if self._attachment is not None:
            self._attachment.refresh()

    def state_dict(self) -> OrderedDict[str, torch.Tensor]:
        """Return copies of the current parameters and buffers, by the model's own names."""
        self.refresh()
        state = self._model.state_dict()
        return OrderedDict(
            (key, tensor.detach().clone()) for key, tensor in state.items()
        )

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from other parameters and buffers; the optimizer's state stays.

        Raises:
            MismatchError: a name is missing, unknown, or of another shape.
        """
        self._ready("load_state_dict")
        mismatched = _find_mismatched_names(self._model.state_dict(), state)
        if mismatched:
            raise MismatchError(
                f"state: {mismatched[0]!r} is not in both, or of another shape"
            )
        self._model.load_state_dict(state)

    def save(self, path: str | Path) -> None:
        """Write everything that training goes on from: a safetensors file, atomically."""
        placed = self._ready("save")
        placed.publish()
        write_training(path, placed.state(), self.num_steps, self._constants_now())

    def resume(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote, on whatever placement of the same model.

        Raises:
            FormatError: no such file, or not one of these.
            MismatchError: it is of another model or optimizer.
        """
        placed = self._ready("resume")
        shared = placed.state()
        tensors, steps, groups = read_training(path)
        mismatched = _find_mismatched_names(shared, tensors)
        if mismatched or len(groups) != len(self.param_groups):
            name = mismatched[0] if mismatched else "groups of parameters"
            raise MismatchError(f"{path}: {name} does not fit this model and optimizer")
        for name, tensor in tensors.items():
            shared[name].copy_(tensor)
        placed.take()
        self.num_steps = steps
        for group, constants in zip(self.param_groups, groups, strict=True):
            group.update(constants)

    def timing(self) -> StepTiming:
        """Return clocks and timeline of the last pass; printed, a table."""
        return self._ready("timing").timing()

    def close(self) -> None:
        """End the workers; model and optimizer stay as they are. May be called again."""
        if self._attachment is not None:
            self._attachment.close()
        if self._redirection is not None:
            self._redirection.undo()
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
            raise InputError(
                f"{what}: nothing is captured yet; give inputs=... or make a step"
            )
        return self._placed

    def _check_updates(self) -> None:
        if not self._updates:
            raise InputError(
                "compile: no optimizer was given, so that nothing can be updated; call "
                "loss(batch).backward() and your optimizer's step()"
            )

    def _load(self, batch: Inputs) -> Attachment:
        """Make a batch the workers' next one."""
        if self._placed is None:
            self.prepare(batch)
        assert self._placed is not None
        assert self._batches is not None
        if _autocast() != self._cast:
            raise MismatchError(
                f"step: torch.autocast around it is {_autocast()}, and was {self._cast} when it "
                "was captured; put torch.autocast into the model or its loss"
            )
        attachment = self._follow()
        self._batches.load(batch, self._placed.tensors)
        return attachment

    def _pass(self) -> torch.Tensor:
        loss = self._ready("step").step(self.num_steps)
        assert self._attachment is not None
        self._attachment.stale = True
        self._passes += 1
        self.num_steps += 1
        program = self._ready("step").program
        kinds = (
            torch.float32,
            *(program.values[name].dtype for name in program.losses),
        )
        return torch.tensor(loss, dtype=reduce(torch.promote_types, kinds))

    def _set_constants(self) -> None:
        if self._torch is not None:
            check_options(self._torch, self._method)
        for number, group in enumerate(self.param_groups):
            self._constants.set(number, get_constants(self._method, group, number))

    def _take_step(self) -> None:
        assert self._attachment is not None
        self._attachment.note_step()
        self._recorded.take_state()
        if self._redirection is not None:
            self._redirection.note_step()

    def _constants_now(self) -> list[dict[str, Any]]:
        kinds = (bool, int, float, str, tuple, list)
        return [
            {
                key: x
                for key, x in group.items()
                if key != "params" and isinstance(x, kinds)
            }
            for group in self.param_groups
        ]


def _find_mismatched_names(
    expected: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
) -> list[str]:
    """Return the names that one side alone has, then those whose tensors differ in shape."""
    shared = [name for name in expected if name in state]
    return sorted(expected.keys() ^ state.keys()) + [
        name for name in shared if expected[name].shape != state[name].shape
    ]


def _method(
    optimizer: str | Optimizer | torch.optim.Optimizer | None, model: nn.Module
) -> Optimizer:
    if isinstance(optimizer, torch.optim.Optimizer):
        return capture_method(optimizer, model)
    return find_optimizer("sgd" if optimizer is None else optimizer)


def _autocast() -> str:
    """Return the types that torch.autocast casts to, or "off"."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return (
        " and ".join(f"{torch.get_autocast_dtype(kind)} ({kind})" for kind in kinds)
        or "off"
    )


def write_training(
    path: str | Path,
    tensors: Mapping[str, torch.Tensor],
    steps: int,
    groups: list[dict[str, Any]],
) -> None:
    """Write parameters, buffers and optimizer state, atomically.

    Args:
        path: The path of the file.
        tensors: The tensors by value name.
        steps: The number of steps trained so far.
        groups: Hyper-parameters of every group of parameters.

    Raises:
        InputError: the file cannot be written.
    """
    header = {
        "format": FORMAT,
        "version": VERSION,
        "steps": str(steps),
        "groups": json.dumps(groups),
    }
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, header)
    write_whole(path, lambda file: file.write(data))


def read_training(
    path: str | Path,
) -> tuple[dict[str, torch.Tensor], int, list[dict[str, Any]]]:
    """Read tensors by value name, the number of steps and the groups' hyper-parameters.

    Raises:
        FormatError: no such file, or not one of these.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if (header.get("format"), header.get("version")) != (FORMAT, VERSION):
                raise FormatError(f"{path}: not a {FORMAT} file of version {VERSION}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, int(header["steps"]), json.loads(header["groups"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path}: cannot be read: {' '.join(str(error).split())}"
        ) from None


def compile(
    model: nn.Module | str,
    placement: Placement | str | Path,
    optimizer: str | Optimizer | torch.optim.Optimizer | None = "sgd",
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
    constraints: Given | None = None,
) -> TrainingStep:
    """Return a training step that runs where a placement says.

    Args:
        model: A module, or what `capture` takes by name. It is trained: its parameters and buffers
            become views of the memory that the workers share.
        placement: A placement, or the path of its file.
        optimizer: An optimizer of the model's parameters whose step treats every parameter by
            itself, as all of `torch.optim` but LBFGS do. Its `param_groups` are read before every
            update, its state is kept true, and its `step()` runs on the workers until the step is
            closed. Or "sgd", "adamw", or one of `gnnplace.tracing.optimizers`; None: gradients
            alone.
        loss: The loss, as `capture` takes it; a model called by name has its own.
        inputs: Example batch; without one the first batch is captured.
        problem: The problem that the placement was made for. Required for a placement in memory if
            the model was captured with other `groups` or `microbatches`.
        microbatches: Micro-batches of a placement in memory without its problem.
        groups: Number of ops to group to, of a placement in memory without its problem.
        dtype: "float32" or "bfloat16"; a placement file says it itself.
        mode: "measured", "emulated" or "auto"; see `execute`.
        transport: "shm" or "gloo".
        timeout: Seconds without progress after which a step is given up.
        accept_other_loss: Cut the batch also where the loss of its shares is another one; a
            placement file that was made so says it itself.
        constraints: Constraints that the model of a placement in memory was grouped with.

    Raises:
        OtherLossError: the loss of the micro-batches is another one; names the op.
        FormatError, MismatchError: a placement of another model or cluster.
        InputError, UnsupportedError, CaptureError: model or optimizer that cannot be placed.
    """
    plan = read_unbound_placement(
        placement,
        problem,
        microbatches=microbatches,
        groups=groups,
        dtype=dtype,
        constraints=constraints,
    )
    if accept_other_loss:
        plan = replace(plan, accept_other_loss=True)
    workload = _workload(model, inputs, loss)
    step = TrainingStep(workload.model, workload.loss, plan, problem, optimizer)
    step.options = ExecutionOptions(mode=mode, transport=transport, timeout=timeout)
    if workload.inputs:
        step.prepare(workload.inputs)
    return step


def _workload(
    model: nn.Module | str,
    inputs: Inputs | None,
    loss: Callable[..., torch.Tensor] | None,
) -> Workload:
    if isinstance(model, str):
        return load(model)
    if inputs is None and is_uninitialised(model):
        raise InputError(
            "compile: the model has lazy layers, which a first batch initialises; give inputs=..."
        )
    if inputs is not None:
        initialise_lazy(model, loss, inputs)
    example = () if inputs is None else as_inputs(inputs, model)
    return Workload(type(model).__name__, model, example, loss)
