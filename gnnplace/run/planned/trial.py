"""Compares a plan, run on processes of this machine, with the user's own model on one device.

The one device runs the user's model eagerly on the whole batch; nothing comes from a recording.
Only if the step draws random numbers or normalises over the batch does it run one micro-batch after
the other, as gradient accumulation does, because each micro-batch of a plan draws and normalises
by itself. Loss and gradients of a step are compared bit by bit. If they differ because sums have
another order, they are compared again in double precision, where rounding errors of 1e-16 cannot
hide a fault. A plan in half precision must pass there and in its own precision; there its error
may be a few times that of eager PyTorch. Then both train with AdamW for some steps. Losses are
compared, not parameters: Adam makes steps of 1e-4 even from gradients that are only rounding
errors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite, isnan
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from gnnplace.plans import (
    TYPES,
    Action,
    Plan,
    cast_input,
    count_examples,
    retype_model,
    run_in_precision,
    with_batch,
)
from gnnplace.run.checking import Difference, differences
from gnnplace.run.planned.apply import apply_plan
from gnnplace.run.planned.draws import draw_as_plan
from gnnplace.run.planned.runner import PlanRunner
from gnnplace.run.workers import Replica, Seconds, meet, time_steps
from gnnplace.torch_names import OpOverload, TorchDispatchMode, pytree
from gnnplace.tracing import StepModule, make_shares, may_draw, with_double_precision
from gnnplace.zoo import Workload

LEAST_LOSS = 1e-12
"""Losses below it are not told apart by their ratio."""
TOLERANCE = {
    "32-true": 1e-6,
    "bf16-true": 2e-2,
    "16-true": 4e-3,
    "bf16-mixed": 2e-2,
    "16-mixed": 4e-3,
    "bf16-master": 2e-2,
    "16-master": 4e-3,
}
"""Largest error of a tensor, relative to its largest magnitude: of a comparison in double precision
for 32-true, else a few roundings of the type (2^-8 and 2^-11)."""
TIMES, MOST = 4.0, 0.5
"""What half precision may be off from double precision: so many times what the user's own step is,
but no more; a gradient that is lost or counted twice is off by 1, and by as much in double."""
NOTHING = 1e-6
"""What counts as nothing beside the largest gradient of all: the true gradient of a key's bias is
zero, for softmax takes it out, and what is there is rounding."""
RATE = 1e-3  # The learning rate of AdamW
LOSSES = 1e-4
"""Largest relative difference of losses after steps of AdamW: one of 1e-9 in a gradient that is
zero becomes one of 1e-4 in a parameter, the size of Adam's step. Where it is larger (batch norm of
few examples), both train again in double precision, where Adam's epsilon covers such gradients."""
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trial:
    """The results of one process. Only the first has differences and one device's losses.

    Attributes:
        tensors: compared: the loss and the gradients.
        first: differences in the model's own precision, the worst first.
        exact: Those that are judged if the first are not bitwise equal: in double precision,
            and with half precision the first too, against what it may be off; else empty.
        losses: Losses of the steps of AdamW under the plan.
        expected: Losses of the same steps on one device.
        seconds: wall seconds of each timed step.
        doubled: whether the losses are those of a training in double precision, because roundings
            set those in single precision apart.
        beside: wall seconds of each timed step of what else ran, by its name.
    """

    tensors: int
    first: list[Difference]
    exact: list[Difference]
    losses: list[float]
    expected: list[float]
    seconds: list[float]
    doubled: bool = False
    beside: Seconds = field(default_factory=dict)


def run_trial(
    plan: Plan,
    workload: Workload,
    *,
    train: int = 20,
    steps: int = 5,
    device: str = "cpu",
    notify: Callable[[Action | None], None] | None = None,
    beside: bool = False,
) -> Trial:
    """Compare and time a plan; every process of it calls this.

    Args:
        plan: the plan that is run.
        workload: model, loss and inputs of the whole batch.
        train: how many steps of AdamW are taken.
        steps: how many steps are timed.
        device: the device of this process, as torch names it.
        notify: is called before every action, and with None while things get ready.
        beside: whether DistributedDataParallel and one device are timed by turns with it.
    """
    workload = with_batch(workload, plan.file.batch)
    apply = partial(_apply, device=device, notify=notify)
    computed, eager = _compute_steps(plan, workload, apply)
    first = compare_gradients(computed, eager, TOLERANCE[plan.file.precision])
    # Steps that are not bitwise equal are judged in double precision.
    exact: list[Difference] = []
    if _any(bool(first)):
        exact = _judge(plan, workload, (computed, eager), apply)
    if train:
        expected = _train_alone(plan, workload, train)
    else:
        expected = []
    runner = apply(plan, workload)
    share = runner.share(workload.inputs)
    if runner.loss_scale is not None:
        _settle(runner, share)
    losses = _train(runner, share, train)
    runs = {
        "plan": lambda: _run_common_step(runner, share),
        **(_make_rivals(workload) if beside else {}),
    }
    wall = time_steps(runs, steps, warm_up=int(beside))[0]
    seconds = wall.pop("plan")
    doubled = (
        _any(loss_difference(losses, expected) > LOSSES)
        and plan.file.precision == "32-true"
    )
    if doubled:
        exactly = with_double_precision(workload)
        expected = _train_alone(plan, exactly, train)
        runner = apply_plan(
            plan,
            exactly.model,
            exactly.inputs,
            loss=exactly.loss,
            device=device,
            notify=notify,
            attention=attends(plan),
        )
        losses = _train(runner, runner.share(exactly.inputs), train)
    return Trial(
        tensors=len(eager),
        first=first,
        exact=exact,
        losses=losses,
        expected=expected,
        seconds=seconds,
        doubled=doubled,
        beside=wall,
    )


def _make_rivals(workload: Workload) -> dict[str, Callable[[], None] | None]:
    """Return a step of DistributedDataParallel, if the batch has equal parts, and of one device."""
    count = dist.get_world_size()
    rank = dist.get_rank()
    steps: dict[str, nn.Module | None] = {}
    if count_examples(workload) % count == 0:
        steps["data parallelism (DDP)"] = Replica(
            workload, make_shares(workload, count)[rank]
        )
    one = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
    steps["one device"] = None if rank else one
    return {
        name: None if it is None else partial(_run_pass, it)
        for name, it in steps.items()
    }


def _run_pass(step: nn.Module) -> None:
    """Run a forward and a backward pass."""
    step.zero_grad()
    (step(*step.inputs()) if isinstance(step, StepModule) else step()).backward()


def loss_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference of losses, infinite if one alone is not finite.

    0 where there are none to compare with.
    """
    largest = 0.0
    for loss, expected_loss in zip(losses, expected, strict=False):
        both_are_nan = isnan(loss) and isnan(expected_loss)
        if loss == expected_loss or both_are_nan:
            continue
        difference = abs(loss - expected_loss) / max(abs(expected_loss), LEAST_LOSS)
        if not isfinite(difference):
            return inf
        largest = max(largest, difference)
    return largest


def _any(flag: bool) -> bool:
    """Return whether a flag is set on any process."""
    if not dist.is_initialized():
        return flag
    word = torch.tensor(float(flag))
    dist.all_reduce(word)
    return bool(word > 0)


Apply = Callable[[Plan, Workload], PlanRunner]
"""Applies a plan to a copy of a workload's model on this process."""


def _apply(
    plan: Plan,
    workload: Workload,
    *,
    device: str,
    notify: Callable[[Action | None], None] | None,
) -> PlanRunner:
    """Apply the plan to a copy of the workload's model."""
    return apply_plan(
        plan,
        copy.deepcopy(workload.model),
        workload.inputs,
        loss=workload.loss,
        device=device,
        notify=notify,
        attention=attends(plan),
    )


def _compute_steps(
    plan: Plan, workload: Workload, apply: Apply
) -> tuple[Gradients, Gradients]:
    """Return a step's loss and gradients, and one device's; empty but on the first process."""
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if is_first:
        expected = compute_alone(plan, workload)
    else:
        expected = {}
    runner = apply(plan, workload)
    loss = _settle(runner, runner.share(workload.inputs))
    computed = gather_gradients(runner)
    if not is_first:
        return {}, {}
    computed["loss"] = loss.detach().cpu()
    return computed, expected


def _judge(
    plan: Plan,
    workload: Workload,
    steps: tuple[Gradients, Gradients],
    apply: Apply,
) -> list[Difference]:
    """Return the differences of a step that is not bitwise equal, the worst by its tolerance first.

    Args:
        plan: The plan that was run.
        workload: model, loss and inputs of the whole batch.
        steps: what `_compute_steps` gave in the plan's own precision.
        apply: applies a plan on this process.
    """
    full = replace(plan, file=plan.file.model_copy(update={"precision": "32-true"}))
    with _Doubled():
        computed, exact = _compute_steps(full, with_double_precision(workload), apply)
    double = compare_gradients(computed, exact, TOLERANCE["32-true"])
    if plan.file.precision == "32-true":
        return double
    run, eager = steps
    allowed = TOLERANCE[plan.file.precision]
    half = compare_gradients(run, eager, allowed)
    wrong = [d for d in double if not d.passed]
    if not all(d.passed for d in half):
        of_eager = {
            d.name: min(TIMES * d.relative, MOST)
            for d in compare_gradients(eager, exact, 0.0)
        }
        half = [
            replace(d, tolerance=max(allowed, of_eager.get(d.name, 0.0)))
            for d in compare_gradients(run, exact, 0.0)
        ]
    return sorted([*wrong, *half], key=lambda d: -d.relative / d.tolerance)


def compare_gradients(
    computed: Gradients, expected: Gradients, tolerance: float
) -> list[Difference]:
    """Return the tensors that are not equal, the worst first; a missing one is infinitely so."""
    unpaired = {
        name: computed.get(name, expected.get(name))
        for name in computed.keys() ^ expected.keys()
    }
    missing = sorted(
        n for n, t in unpaired.items() if t is not None and bool(t.abs().max() > 0)
    )
    infinite = [Difference(name, inf, inf, tolerance) for name in missing]
    ordered = dict(sorted(expected.items()))
    return [*infinite, *differences(computed, ordered, tolerance, nothing=NOTHING)]


def _settle(runner: PlanRunner, share: object) -> torch.Tensor:
    """Return the loss of a first step, repeated until the factor on the loss keeps gradients."""
    loss = runner.step(share)
    while (
        runner.loss_scale is not None
        and runner.loss_scale.good == 0
        and runner.loss_scale.factor > 1.0
    ):
        runner.steps = 0  # of which the random numbers are
        loss = runner.step(share)
    runner.steps = 0
    return loss


def gather_gradients(runner: PlanRunner) -> Gradients:
    """Gather whole gradients of all stages on the first process."""
    local = {f"gradient of {name}": g.cpu() for name, g in runner.gradients().items()}
    seat = runner.parameters_here.seat
    if seat.seats.count == 1:
        return local
    forms = {n: (tuple(g.shape), g.dtype) for n, g in local.items()}
    tellers = seat.replica == 0 and seat.shard == 0
    everyone: list[Any] = [None] * seat.seats.count
    dist.all_gather_object(everyone, forms if tellers else {})
    gradients: Gradients = {}
    for process, process_forms in enumerate(everyone):
        for name, (shape, dtype) in process_forms.items():
            if seat.process == process:
                gradients[name] = local[name]
                if process:
                    dist.send(local[name].contiguous(), 0)
            elif seat.process == 0:
                gradients[name] = torch.empty(shape, dtype=dtype)
                dist.recv(gradients[name], process)
    return gradients


def attends(plan: Plan) -> bool:
    """Return whether the dropout of attention can be compared: not if heads are split."""
    return all(len(stage.rows[0]) == 1 for stage in plan.file.stages)


class _Doubled(TorchFunctionMode):
    """Single precision that a model asks for by name (norms, gates) is double precision, too.

    Else roundings of 1e-7 stand in a comparison that takes them for none, and what cancels makes
    any number of them, such as the gradient of a factor that a norm takes out.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        arguments = args, kwargs or {}
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        elif func is not torch.Tensor.view:  # which reads the same bits as another type
            arguments = pytree.tree_map(
                lambda x: torch.float64 if x is torch.float32 else x, arguments
            )
        return func(*arguments[0], **arguments[1])


class _RandomnessWatch(TorchDispatchMode):
    """A mode that notes whether an op draws random numbers or norms by the batch's statistics."""

    has_found = False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        norms = "batch_norm" in func.__name__ and bool(args[5])
        self.has_found = self.has_found or norms or may_draw(func, args, kwargs)
        return func(*args, **kwargs)


def shares_alone(plan: Plan, workload: Workload) -> int:
    """Return how many shares one device runs in sequence: 1, but for draws and batch norms."""
    if plan.file.batch == plan.file.microbatch_size:
        return 1
    step = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        _RandomnessWatch() as watch,
    ):
        step(*step.inputs())
    if watch.has_found:
        return plan.file.batch // plan.file.microbatch_size
    return 1


def alone_step(
    plan: Plan, workload: Workload, count: int, number: int = 0
) -> torch.Tensor:
    """Run one step of the user's model eagerly, with gradients of its shares' mean or sum.

    Args:
        plan: The plan that it is compared with.
        workload: model, loss and inputs of the whole batch.
        count: shares, 1 for the whole batch at once.
        number: The number of the step, on which random numbers depend.
    """
    if plan.file.loss == "sum":
        weight = 1.0
    else:
        weight = 1.0 / count
    total = torch.zeros((), dtype=torch.float64)
    for k, inputs in enumerate(
        make_shares(workload, count) if count > 1 else [workload.inputs]
    ):
        step = StepModule(workload.model, workload.loss, inputs)
        with draw_as_plan(0, number, k, attention=attends(plan)):
            with run_in_precision(plan.file.precision):
                loss = step(*step.inputs())
            (loss * weight).backward()
        total += loss.detach()
    return (total * weight).to(loss.dtype)


def convert_workload(plan: Plan, workload: Workload) -> Workload:
    """Return a copy of a workload in the type of the plan's parameters."""
    model = copy.deepcopy(workload.model)
    precision = plan.file.precision
    if precision in TYPES:
        retype_model(model, TYPES[precision])
    inputs = pytree.tree_map(lambda x: cast_input(x, precision), workload.inputs)
    return Workload(workload.name, model, inputs, workload.loss)


def compute_alone(plan: Plan, workload: Workload) -> Gradients:
    """Return loss and gradients of the user's model on one device."""
    copied = convert_workload(plan, workload)
    model = copied.model
    with torch.random.fork_rng(devices=[]):
        loss = alone_step(plan, copied, shares_alone(plan, copied))
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss, **{f"gradient of {n}": g for n, g in grads.items()}}


def _optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters), lr=RATE)


def _train(runner: PlanRunner, share: object, steps: int) -> list[float]:
    """Train by AdamW under the plan, and return the losses."""
    optimizer = _optimizer(runner.parameters())
    losses = []
    optimizer.zero_grad()  # what was compared is not trained by
    for _ in range(steps):
        losses.append(float(runner.step(share)))
        optimizer.step()
    return losses


def _train_alone(plan: Plan, workload: Workload, steps: int) -> list[float]:
    """Train by AdamW on one device, on the first process, and return the losses."""
    if dist.is_initialized() and dist.get_rank() > 0:
        return []
    copied = convert_workload(plan, workload)
    learned: list[nn.Parameter] = list(copied.model.parameters())
    masters = learned
    if plan.file.precision.endswith("-master"):
        masters = [nn.Parameter(p.detach().float(), p.requires_grad) for p in learned]
    optimizer = _optimizer(masters)
    losses = []
    count = shares_alone(plan, copied)
    for number in range(steps):
        losses.append(float(alone_step(plan, copied, count, number)))
        _step_masters(optimizer, learned, masters)
    return losses


@torch.no_grad()
def _step_masters(
    optimizer: torch.optim.Optimizer,
    learned: Sequence[nn.Parameter],
    masters: Sequence[nn.Parameter],
) -> None:
    """Step the optimizer on the copies that it updates, then copy them to the parameters."""
    for master, parameter in zip(masters, learned, strict=True):
        if master is not parameter:
            if parameter.grad is None:
                master.grad = None
            else:
                master.grad = parameter.grad.float()
    optimizer.step()
    for master, parameter in zip(masters, learned, strict=True):
        parameter.grad = None
        if master is not parameter:
            parameter.copy_(master)


def _run_common_step(runner: PlanRunner, share: object) -> None:
    """Run a step, which is over when all processes are done with it."""
    runner.step(share)
    meet()
