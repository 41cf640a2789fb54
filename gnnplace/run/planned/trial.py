"""A plan run on processes of this machine, compared with the user's own model on one device.

The one device runs the model as the user has it, eagerly, on the whole batch: nothing of it is
taken from a recording. Only a step that draws random numbers or norms by the batch runs share after
share, as gradient accumulation does, for the micro-batches of a plan draw and norm each by itself.
Loss and gradients of a step are compared bit by bit, and where
another order of sums makes other roundings, again in double precision, where these are 1e-16 and a
fault does not hide among them. A plan in half precision must pass there and in its own precision,
where a step that eager PyTorch itself computes badly is allowed as much, some times. Then both
train with AdamW for some steps: losses are compared, not parameters, since Adam makes steps of 1e-4
of gradients that are zero but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite, isnan
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from gnnplace.plans.order.orders import Action
from gnnplace.plans.plan import Plan
from gnnplace.plans.segments.chains import TYPES, as_type, batch_of, retyped, with_batch
from gnnplace.plans.segments.recording import precision_of
from gnnplace.plans.segments.stage_calls import drawn_alike
from gnnplace.run.checking import Difference, differences
from gnnplace.run.planned.apply import apply_plan
from gnnplace.run.planned.runner import PlanRunner
from gnnplace.run.workers import Replica, Seconds, meet, time_steps
from gnnplace.torch_names import TorchDispatchMode, pytree
from gnnplace.tracing import StepModule, in_double, may_draw, shares_of
from gnnplace.zoo import Workload

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
RATE = 1e-3  # of AdamW
LOSSES = 1e-4
"""Largest relative difference of losses after steps of AdamW: one of 1e-9 in a gradient that is
zero becomes one of 1e-4 in a parameter, the size of Adam's step. Where it is larger (batch norm of
few examples), both train again in double precision, where Adam's epsilon covers such gradients."""
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trial:
    """What one process found; differences and losses of one device stand in the first's.

    Attributes:
        tensors: compared: the loss and the gradients.
        first: differences in the model's own precision, the worst first.
        exact: those that are judged where the first are not bitwise equal: in double precision,
            and with half precision the first too, against what it may be off; else empty.
        losses: of the steps of AdamW under the plan.
        expected: of those on one device.
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


def tried(
    plan: Plan,
    workload: Workload,
    *,
    train: int = 20,
    steps: int = 5,
    device: str = "cpu",
    told: Callable[[Action | None], None] | None = None,
    beside: bool = False,
) -> Trial:
    """Compares and times a plan; every process of it calls this.

    Args:
        plan: the plan that is run.
        workload: model, loss and inputs of the whole batch.
        train: how many steps of AdamW are taken.
        steps: how many steps are timed.
        device: the device of this process, as torch names it.
        told: is called before every action, and with None while things get ready.
        beside: whether DistributedDataParallel and one device are timed by turns with it.
    """
    workload = with_batch(workload, plan.file.batch)
    found, alike = _steps(plan, workload, device, told)
    first = off(found, alike, TOLERANCE[plan.file.precision])
    exact: list[Difference] = []
    if _any(bool(first)):
        exact = _judged(plan, workload, (found, alike), device, told)
    expected = _trained_alone(plan, workload, train) if train else []
    runner = _applied(plan, workload, device, told)
    share = runner.share(workload.inputs)
    if runner.scale is not None:
        _settled(runner, share)
    losses = _trained(runner, share, train)
    runs = {"plan": lambda: _step_of_all(runner, share), **(_rivals(workload) if beside else {})}
    wall = time_steps(runs, steps, warm_up=int(beside))[0]
    seconds = wall.pop("plan")
    doubled = _any(apart(losses, expected) > LOSSES) and plan.file.precision == "32-true"
    if doubled:
        exactly = in_double(workload)
        expected = _trained_alone(plan, exactly, train)
        runner = apply_plan(plan, exactly.model, exactly.inputs, loss=exactly.loss, device=device,
                            told=told, attention=attends(plan))  # fmt: skip
        losses = _trained(runner, runner.share(exactly.inputs), train)
    return Trial(len(alike), first, exact, losses, expected, seconds, doubled, wall)


def _rivals(workload: Workload) -> dict[str, Callable[[], None] | None]:
    """A step of DistributedDataParallel, where the batch has equal parts, and one of one device."""
    count, rank = dist.get_world_size(), dist.get_rank()
    steps: dict[str, nn.Module | None] = {}
    if batch_of(workload) % count == 0:
        steps["data parallelism (DDP)"] = Replica(workload, shares_of(workload, count)[rank])
    one = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
    steps["one device"] = None if rank else one
    return {name: None if it is None else partial(_pass, it) for name, it in steps.items()}


def _pass(step: nn.Module) -> None:
    """A forward and a backward pass."""
    step.zero_grad()
    (step(*step.inputs()) if isinstance(step, StepModule) else step()).backward()


def apart(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Largest relative difference of losses, infinite where one alone is no finite number.

    0 where there are none to compare with.
    """
    both = zip(losses, expected, strict=False)
    pairs = [(a, b) for a, b in both if a != b and not (isnan(a) and isnan(b))]
    far = (abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)
    return max((x if isfinite(x) else inf for x in far), default=0.0)


def _any(found: bool) -> bool:
    """Whether any process found something."""
    if not dist.is_initialized():
        return found
    word = torch.tensor(float(found))
    dist.all_reduce(word)
    return bool(word > 0)


def _applied(
    plan: Plan, workload: Workload, device: str, told: Callable[[Action | None], None] | None
) -> PlanRunner:
    """The plan on a copy of the workload's model."""
    return apply_plan(
        plan,
        copy.deepcopy(workload.model),
        workload.inputs,
        loss=workload.loss,
        device=device,
        told=told,
        attention=attends(plan),
    )


def _steps(
    plan: Plan, workload: Workload, device: str, told: Callable[[Action | None], None] | None
) -> tuple[Gradients, Gradients]:
    """Loss and gradients of a step, and one device's; on the first process, else nothing."""
    mine = not dist.is_initialized() or dist.get_rank() == 0
    expected = alone(plan, workload) if mine else {}
    runner = _applied(plan, workload, device, told)
    loss = _settled(runner, runner.share(workload.inputs))
    found = collected(runner)
    if not mine:
        return {}, {}
    found["loss"] = loss.detach().cpu()
    return found, expected


def _judged(
    plan: Plan,
    workload: Workload,
    steps: tuple[Gradients, Gradients],
    device: str,
    told: Callable[[Action | None], None] | None,
) -> list[Difference]:
    """Differences of a step whose roundings are others, the worst beside what it may be first.

    Args:
        plan: that was run.
        workload: model, loss and inputs of the whole batch.
        steps: what `_steps` gave in the plan's own precision.
        device: of this process.
        told: is called before every action.
    """
    full = replace(plan, file=plan.file.model_copy(update={"precision": "32-true"}))
    with _Doubled():
        found, exact = _steps(full, in_double(workload), device, told)
    double = off(found, exact, TOLERANCE["32-true"])
    if plan.file.precision == "32-true":
        return double
    run, eager = steps
    allowed = TOLERANCE[plan.file.precision]
    half, wrong = off(run, eager, allowed), [d for d in double if not d.passed]
    if not all(d.passed for d in half):
        own = {d.name: min(TIMES * d.relative, MOST) for d in off(eager, exact, 0.0)}
        half = [replace(d, tolerance=max(allowed, own.get(d.name, 0.0)))
                for d in off(run, exact, 0.0)]  # fmt: skip
    return sorted([*wrong, *half], key=lambda d: -d.relative / d.tolerance)


def off(found: Gradients, expected: Gradients, tolerance: float) -> list[Difference]:
    """Tensors that are not equal, the worst first; one that is missing is infinitely so."""
    odd = {name: found.get(name, expected.get(name)) for name in found.keys() ^ expected.keys()}
    missing = sorted(n for n, t in odd.items() if t is not None and bool(t.abs().max() > 0))
    infinite = [Difference(name, inf, inf, tolerance) for name in missing]
    ordered = dict(sorted(expected.items()))
    return [*infinite, *differences(found, ordered, tolerance, nothing=NOTHING)]


def _settled(runner: PlanRunner, share: Any) -> torch.Tensor:
    """The loss of a first step, again until the factor on the loss is one that keeps gradients."""
    loss = runner.step(share)
    while runner.scale is not None and runner.scale.good == 0 and runner.scale.factor > 1.0:
        runner.steps = 0  # of which the random numbers are
        loss = runner.step(share)
    runner.steps = 0
    return loss


def collected(runner: PlanRunner) -> Gradients:
    """Whole gradients of all stages, on the first process."""
    own = {f"gradient of {name}": g.cpu() for name, g in runner.gradients().items()}
    seat = runner.parameters_here.seat
    if seat.seats.count == 1:
        return own
    mine = {n: (tuple(g.shape), g.dtype) for n, g in own.items()}
    tellers = seat.replica == 0 and seat.shard == 0
    everyone: list[Any] = [None] * seat.seats.count
    dist.all_gather_object(everyone, mine if tellers else {})
    found: Gradients = {}
    for process, told in enumerate(everyone):
        for name, (shape, dtype) in told.items():
            if seat.process == process:
                found[name] = own[name]
                if process:
                    dist.send(own[name].contiguous(), 0)
            elif seat.process == 0:
                found[name] = torch.empty(shape, dtype=dtype)
                dist.recv(found[name], process)
    return found


def attends(plan: Plan) -> bool:
    """Whether the dropout of attention can be compared: not where heads are split."""
    return all(len(stage.rows[0]) == 1 for stage in plan.file.stages)


class _Doubled(TorchFunctionMode):
    """Single precision that a model asks for by name (norms, gates) is double precision, too.

    Else roundings of 1e-7 stand in a comparison that takes them for none, and what cancels makes
    any number of them, such as the gradient of a factor that a norm takes out.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        elif func is not torch.Tensor.view:  # which reads the same bits as another type
            given = pytree.tree_map(lambda x: torch.float64 if x is torch.float32 else x, given)
        return func(*given[0], **given[1])


class _Apart(TorchDispatchMode):
    """Notes whether an op draws random numbers or norms by the statistics of the batch."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        norms = "batch_norm" in func.__name__ and bool(args[5])
        self.found = self.found or norms or may_draw(func, args, kwargs)
        return func(*args, **kwargs)


def shares_alone(plan: Plan, workload: Workload) -> int:
    """Shares that one device takes one after the other: 1, but for draws and batch norms."""
    if plan.file.batch == plan.file.microbatch_size:
        return 1
    step = StepModule(copy.deepcopy(workload.model), workload.loss, workload.inputs)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _Apart() as apart:
        step(*step.inputs())
    return plan.file.batch // plan.file.microbatch_size if apart.found else 1


def alone_step(plan: Plan, workload: Workload, count: int, number: int = 0) -> torch.Tensor:
    """One step of the user's model, eagerly: gradients of the mean or sum of its shares' losses.

    Args:
        plan: that it is compared with.
        workload: model, loss and inputs of the whole batch.
        count: shares, 1 for the whole batch at once.
        number: of the step, on which random numbers depend.
    """
    part = 1.0 if plan.file.loss == "sum" else 1.0 / count
    total = torch.zeros((), dtype=torch.float64)
    for k, inputs in enumerate(shares_of(workload, count) if count > 1 else [workload.inputs]):
        step = StepModule(workload.model, workload.loss, inputs)
        with drawn_alike(0, number, k, attention=attends(plan)):
            with precision_of(plan.file.precision):
                loss = step(*step.inputs())
            (loss * part).backward()
        total += loss.detach()
    return (total * part).to(loss.dtype)


def typed(plan: Plan, workload: Workload) -> Workload:
    """A copy of a workload in the type of the plan's parameters."""
    model, precision = copy.deepcopy(workload.model), plan.file.precision
    if precision in TYPES:
        retyped(model, TYPES[precision])
    inputs = pytree.tree_map(lambda x: as_type(x, precision), workload.inputs)
    return Workload(workload.name, model, inputs, workload.loss)


def alone(plan: Plan, workload: Workload) -> Gradients:
    """Loss and gradients of the user's model on one device."""
    own = typed(plan, workload)
    model = own.model
    with torch.random.fork_rng(devices=[]):
        loss = alone_step(plan, own, shares_alone(plan, own))
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss, **{f"gradient of {n}": g for n, g in grads.items()}}


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters), lr=RATE)


def _trained(runner: PlanRunner, share: Any, steps: int) -> list[float]:
    """Losses of steps of AdamW under the plan."""
    optimizer, losses = _optimizer(runner.parameters()), []
    optimizer.zero_grad()  # what was compared is not trained by
    for _ in range(steps):
        losses.append(float(runner.step(share)))
        optimizer.step()
    return losses


def _trained_alone(plan: Plan, workload: Workload, steps: int) -> list[float]:
    """The same on one device; on the first process."""
    if dist.is_initialized() and dist.get_rank() > 0:
        return []
    own = typed(plan, workload)
    learned: list[nn.Parameter] = list(own.model.parameters())
    masters = learned
    if plan.file.precision.endswith("-master"):
        masters = [nn.Parameter(p.detach().float(), p.requires_grad) for p in learned]
    optimizer, losses = _optimizer(masters), []
    count = shares_alone(plan, own)
    for number in range(steps):
        losses.append(float(alone_step(plan, own, count, number)))
        _stepped(optimizer, learned, masters)
    return losses


@torch.no_grad()
def _stepped(
    optimizer: torch.optim.Optimizer,
    learned: Sequence[nn.Parameter],
    masters: Sequence[nn.Parameter],
) -> None:
    """A step of the optimizer on the copies that it learns, then the parameters follow."""
    for master, own in zip(masters, learned, strict=True):
        if master is not own:
            master.grad = None if own.grad is None else own.grad.float()
    optimizer.step()
    for master, own in zip(masters, learned, strict=True):
        own.grad = None
        if master is not own:
            own.copy_(master)


def _step_of_all(runner: PlanRunner, share: Any) -> None:
    """A step, which is over when all processes are done with it."""
    runner.step(share)
    meet()
