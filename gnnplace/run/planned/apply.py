"""A plan on a user's model: every process gets its stages, its parts of parameters and its row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.plans import (
    Action,
    Plan,
    check_plan,
    count_examples,
    make_plan_inputs,
)
from gnnplace.run.planned.batches import BatchForm
from gnnplace.run.planned.executor import Executor
from gnnplace.run.planned.runner import PlanRunner
from gnnplace.run.planned.seats import make_seats, take_seat
from gnnplace.run.planned.stage_code import make_stage_codes
from gnnplace.run.planned.stages import record_model, stage_model
from gnnplace.run.planned.whole import (
    is_whole,
    make_marks,
    refuse_again,
    refuse_parts,
)
from gnnplace.tracing import (
    Fingerprint,
    as_inputs,
    initialise_lazy,
    note_attribute_reads,
    refuse_meta,
)
from gnnplace.zoo import Workload


def apply_plan(
    plan: Plan,
    model: nn.Module,
    inputs: object,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    reduction: str | None = None,
    notify: Callable[[Action | None], None] | None = None,
    attention: bool = True,
) -> PlanRunner:
    """Make a model train as a plan says; see `JointPlan.apply`.

    `notify` is called before every action, and with None while things get ready. Without
    `attention`, the dropout of attention is off.
    """
    refuse_again(model)
    file = plan.file
    beat = notify or _ignore
    inputs = make_plan_inputs(file) if inputs is None else inputs
    reduction = reduction or file.loss
    if reduction not in ("mean", "sum"):
        raise InputError(f"apply: reduction {reduction!r}: must be mean or sum")
    checked = check_plan(file)
    initialise_lazy(model, loss, inputs)
    workload = Workload(file.model, model, as_inputs(inputs, model), loss)
    refuse_meta(model, workload.inputs, "apply")
    form = BatchForm.of(workload.inputs, count_examples(workload), file.precision)
    torch_device = _device(device, model)
    with note_attribute_reads(model) as read:
        recorded = record_model(file, workload, attention)
    beat(None)
    staged = stage_model(file, recorded, torch_device)
    seat = take_seat(make_seats(file), torch_device, staged.shared)
    beat(None)
    code = make_stage_codes(file, staged, seat)
    beat(None)
    # Losses of micro-batches and replicas add up; a mean is over all of them.
    scale = 1.0 if reduction == "sum" else 1.0 / (plan.microbatches * seat.replicas)
    store = next(iter(code.values())).parameters
    if not is_whole(store, model):
        refuse_parts(model)
    runner = PlanRunner(
        file=file,
        model=model,
        parameters_here=store,
        executor=Executor(
            seat, checked.rows[seat.rank], file.rank_of, code, scale, beat
        ),
        form=form,
        seed=seed,
        staged=staged,
        recorded=Fingerprint(model, None, read, loss),
        marks=make_marks(store, model),
    )
    runner.marks.put()
    return runner


def _ignore(action: Action | None) -> None:
    """Ignore an action."""


def _device(device: torch.device | str | None, model: nn.Module) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    if first is None:
        return torch.device("cpu")
    return first.device
