"""One step of a program in one process, op by op: what every placed run must reproduce."""

from __future__ import annotations

from typing import Any

import torch

from gnnplace.execution.result import StepValues
from gnnplace.execution.saving import SavedValues, made_values, state_values
from gnnplace.runtime.board import SEGMENT, Board
from gnnplace.runtime.workers import Task, available_cores, run_tasks
from gnnplace.tracing.calls import on_device
from gnnplace.tracing.operations import set_step
from gnnplace.tracing.program import Program, ProgramOp, map_refs


def reference_step(
    program: Program, *, step: int = 0, device: str = "cpu", timeout: float = 120.0
) -> StepValues:
    """Runs `program` as it was captured, in one worker with one thread.

    Args:
        program: With its initial tensors.
        step: Number of the step; random ops depend on it.
        device: Where, as torch names it.
        timeout: Seconds that one op may take.

    Raises:
        ExecutionError: the program failed.
    """
    saved = SavedValues(program, [*made_values(program), *state_values(program)])
    board = Board(1)
    task = Task(
        "reference",
        lambda: _run(program, step, torch.device(device), saved, board),
        available_cores()[0],
    )

    def doing(worker: int) -> str:
        return f" in op {program.ops[board.get(worker, SEGMENT)].name!r}"

    run_tasks([task], timeout=timeout, progress=board.snapshot, doing=doing)
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
    def there(item: Any) -> Any:
        return map_refs(on_device(item, device), lambda ref: values[ref.name])

    args = [there(item) for item in op.args]
    kwargs = {key: there(item) for key, item in op.kwargs.items()}
    result = on_device(op.target, device)(*args, **kwargs)
    results = [result] if len(op.results) == 1 else list(result or ())
    pairs = zip(op.results, results, strict=True)
    return [(name, tensor) for name, tensor in pairs if name is not None]
