"""A run compared with one process, and with eager PyTorch on the whole batch.

`verify` compares a run bit for bit with one process that runs the same captured ops, op by op
(`reference_step`), on the same micro-batches. `compare_with_whole_batch` calls the user's own
module once, on the whole batch. Sums have another order there, so that a tolerance applies. If it
is exceeded, the module runs once more in double precision, and the run's error may be a few times
that of eager PyTorch (a rectifier after a batch norm of few examples is inaccurate in both). A
module that draws random numbers draws those of the run, because its generator is seeded before each
draw like that of the run's op. If its draws differ, nothing is compared, and the summary says why.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter

import torch

from gnnplace.errors import InputError
from gnnplace.run.checking.comparison import Verification, differences
from gnnplace.run.placed import (
    Execution,
    SavedValues,
    StepValues,
    list_computed_values,
    state_values,
)
from gnnplace.run.workers import SEGMENT, Board, Task, available_cores, run_tasks
from gnnplace.torch_names import pytree
from gnnplace.tracing import (
    NEGLIGIBLE,
    TOLERANCE,
    VANISHED,
    Program,
    ProgramDraws,
    ProgramOp,
    StepModule,
    convert_to_double,
    find_coarsest_tolerance,
    find_largest,
    map_refs,
    on_device,
    relative_error,
    seeded,
    set_step,
)

TARGET = attrgetter("target")  # The target of an op
TIMES, MOST = 4.0, 0.1
"""A run may be off from double precision TIMES as much as eager PyTorch, and MOST at the most."""


def verify(program: Program, execution: Execution) -> Verification:
    """Compare a run's first step with the same program in one process, on one device.

    A run on GPUs is compared with one GPU, any other with the CPU.

    Args:
        program: The program that was executed.
        execution: The run itself, with outputs.

    Raises:
        InputError: the execution brought no numbers back.
        ExecutionError: the reference run failed.
    """
    if execution.first is None:
        raise InputError("execution: it has no outputs; run execute(..., outputs=True)")
    gpus = execution.mode == "measured" and all(
        d.startswith("cuda:") for d in execution.devices
    )
    device = execution.devices[0] if gpus else "cpu"
    return compare(execution.first, reference_step(program, device=device))


def compare(run: StepValues, reference: StepValues) -> Verification:
    """Compare all numbers of a step: loss, gradients, parameters, buffers, outputs."""
    expected = dict(_tensors(reference))
    computed = dict(_tensors(run))
    if expected.keys() != computed.keys():
        unpaired = min(expected.keys() ^ computed.keys())
        raise InputError(
            f"execution: {unpaired} is on one side only; was it another program?"
        )
    different = differences(computed, expected, TOLERANCE)
    different.sort(
        key=lambda d: d.relative / d.tolerance if d.tolerance else d.relative
    )
    return Verification(len(expected), tuple(reversed(different)))


def _tensors(values: StepValues) -> Iterator[tuple[str, torch.Tensor]]:
    if values.loss is not None:
        yield "loss", torch.tensor(values.loss)
    groups = {
        "gradient of": values.gradients,
        "parameter": values.parameters,
        "buffer": values.buffers,
        "optimizer state": values.optimizer,
        "output": values.outputs,
    }
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            yield f"{group} {name}", tensor


def reference_step(
    program: Program, *, step: int = 0, device: str = "cpu"
) -> StepValues:
    """Run `program` as it was captured, in one worker with one thread.

    Args:
        program: The program with its initial tensors.
        step: Number of the step; random ops depend on it.
        device: The device, as torch names it.

    Raises:
        ExecutionError: the program failed.
    """
    saved = SavedValues(
        program, [*list_computed_values(program), *state_values(program)]
    )
    board = Board(1)
    task = Task(
        "reference",
        lambda: _run(program, step, torch.device(device), saved, board),
        available_cores()[0],
    )

    def doing(worker: int) -> str:
        return f" in op {program.ops[board.get(worker, SEGMENT)].name!r}"

    run_tasks([task], progress=board.snapshot, doing=doing)
    return saved.values()


def _run(
    program: Program, step: int, device: torch.device, saved: SavedValues, board: Board
) -> None:
    set_step(step)
    last_use = {name: i for i, op in enumerate(program.ops) for name in op.reads}
    with torch.inference_mode():
        values = {name: _copy(program, name, device) for name in program.inputs}
        for i, op in enumerate(program.ops):
            board.put(0, SEGMENT, i)
            for name, tensor in _results(op, values, device):
                values[name] = tensor
                saved.save(name, tensor)
            for name in op.reads:
                if last_use[name] == i and name not in program.inputs:
                    del values[name]
        for name in state_values(program):
            saved.save(name, values[name])


def _copy(program: Program, name: str, device: torch.device) -> torch.Tensor:
    home = program.inputs[name].home(device)
    return program.initial[name].detach().to(home, copy=True)


def _results(
    op: ProgramOp, values: dict[str, torch.Tensor], device: torch.device
) -> list[tuple[str, torch.Tensor]]:
    def resolve(item: object) -> object:
        return map_refs(on_device(item, device), lambda ref: values[ref.name])

    args = [resolve(item) for item in op.args]
    kwargs = {key: resolve(item) for key, item in op.kwargs.items()}
    result = on_device(op.target, device)(*args, **kwargs)
    if len(op.results) == 1:
        results = [result]
    else:
        results = list(result or ())
    pairs = zip(op.results, results, strict=True)
    return [(name, tensor) for name, tensor in pairs if name is not None]


@dataclass(frozen=True)
class WholeBatch:
    """A run's loss and gradients beside eager PyTorch's on the whole batch.

    Attributes:
        gradients: Number of gradients compared.
        worst: What is off the most.
        relative: By how much, over its largest magnitude.
        tolerance: The largest relative difference that is allowed.
        reason: Why nothing was compared; empty if it was.
        draws: Draws of random numbers, the same on both sides.
    """

    gradients: int = 0
    worst: str = ""
    relative: float = 0.0
    tolerance: float = 0.0
    reason: str = ""
    draws: int = 0

    @property
    def passed(self) -> bool:
        """Return whether everything that was compared is within its tolerance."""
        return bool(self.reason) or self.relative <= self.tolerance

    def summary(self) -> str:
        """Format the comparison as one line."""
        if self.reason:
            return f"not compared with eager PyTorch on the whole batch: {self.reason}"
        verdict = "equal" if self.passed else "are NOT"
        if self.draws:
            same = " with the same random numbers"
        else:
            same = ""
        return (
            f"loss and {self.gradients} gradients {verdict} those of eager PyTorch on the whole "
            f"batch{same}; the worst is {self.worst}: {self.relative:.2g} relative, allowed "
            f"{self.tolerance:.2g}"
        )


def compare_with_whole_batch(
    program: Program, values: StepValues | None, *, on_gpus: bool = False
) -> WholeBatch:
    """Compare a run's first step with eager PyTorch on the whole batch.

    Args:
        program: The program, captured or cut; it knows the module and the batch.
        values: The values of the run's first step.
        on_gpus: Whether the run was on GPUs, whose generators draw other numbers than a CPU's.
    """
    reason = _reason(program, values, on_gpus)
    if reason:
        return WholeBatch(reason=reason)
    assert program.batch is not None
    assert program.batch.whole is not None
    assert values is not None
    # The module's draws are looked at only where the recorded step has some.
    if seeded in map(TARGET, program.ops):
        draws = ProgramDraws(program)
    else:
        draws = None
    eager = _Step(*eager_step(program.batch.whole, draws or nullcontext()))
    if draws is not None and (reason := draws.finish()):
        return WholeBatch(reason=reason)
    count = 0 if draws is None else draws.count
    run = _Step(torch.tensor(values.loss), values.gradients)
    errors = run.errors_against(eager)
    tolerance = find_coarsest_tolerance(info.dtype for info in program.values.values())
    worst = max(errors, key=errors.__getitem__)
    if errors[worst] <= tolerance or (exact := _make_double_step(program)) is None:
        return WholeBatch(len(errors) - 1, worst, errors[worst], tolerance, draws=count)
    eager_errors = eager.errors_against(exact)
    errors = run.errors_against(exact)
    allowed = {
        name: max(tolerance, min(TIMES * eager_errors[name], MOST)) for name in errors
    }
    worst = max(errors, key=lambda name: errors[name] / allowed[name])
    return WholeBatch(
        len(errors) - 1, worst, errors[worst], allowed[worst], draws=count
    )


@dataclass(frozen=True)
class _Step:
    """Loss and gradients of a step, by the parameters' names."""

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor]

    def errors_against(self, reference: _Step) -> dict[str, float]:
        """Return the relative errors of loss and gradients against a reference, by name."""
        largest = find_largest(reference.gradients.values())
        floor = max(NEGLIGIBLE * largest, VANISHED * float(reference.loss.abs()))
        errors = {"the loss": relative_error(self.loss, reference.loss)}
        for name in sorted(reference.gradients.keys() & self.gradients.keys()):
            gradient = relative_error(
                self.gradients[name], reference.gradients[name], floor
            )
            errors[f"the gradient of {name}"] = gradient
        return errors


def _make_double_step(program: Program) -> _Step | None:
    """Return eager PyTorch's step in double precision; None if it has other types or draws."""
    assert program.batch is not None
    step = program.batch.whole
    assert isinstance(step, StepModule)
    if seeded in map(TARGET, program.ops):
        draws = ProgramDraws(program)
    else:
        draws = None
    inputs = pytree.tree_map(convert_to_double, step.kwargs or step.args)
    try:
        model = copy.deepcopy(step.model).double()
        exact = _Step(
            *eager_step(StepModule(model, step.loss, inputs), draws or nullcontext())
        )
    except RuntimeError:
        return None
    if draws is not None and draws.finish():
        return None
    return exact


def _reason(program: Program, values: StepValues | None, on_gpus: bool) -> str:
    batch = program.batch
    if batch is None or batch.whole is None or values is None or values.loss is None:
        return "the run has no loss, or was captured without its module"
    if batch.count != program.microbatches and program.microbatches > 1:
        return "the batch was cut by hand"
    if seeded in map(TARGET, program.ops):
        if program.microbatches > 1:
            return "the step draws random numbers, anew for every micro-batch"
        if on_gpus:
            return "the step draws random numbers, on GPUs others than on a CPU"
    return batch.differs or "; ".join(batch.exceptions)


def eager_step(
    step: torch.nn.Module, draws: AbstractContextManager[object]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return loss and gradients of a copy of a `StepModule` on its inputs, by the model's names.

    Args:
        step: The module; left as it is, and so are the generators.
        draws: Is entered around both passes.
    """
    # Attributes of torch's own classes.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module = copy.deepcopy(step)
    with torch.random.fork_rng(devices=[]), draws:
        loss = module(*module.inputs())  # type: ignore[operator]
        loss.backward()
    gradients = {
        name.removeprefix("model."): parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return loss.detach(), gradients
