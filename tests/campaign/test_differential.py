"""Random models: a captured step equals eager PyTorch's, or is refused; there is nothing else.

Micro-batches as well: their step equals that of eager PyTorch on the whole batch, or the batch is
not cut. Batch norm and random numbers are the two exceptions, and are said.

Equal up to rounding: recurrent layers and some losses are captured as other ops than eager mode
calls, and sums of gradients may have another order.
"""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from gnnplace.errors import GnnplaceError
from gnnplace.tracing.models import capture, capture_workload
from gnnplace.tracing.program.microbatching import with_program_microbatches
from gnnplace.tracing.program.optimizers import Optimizer, adamw, sgd
from gnnplace.tracing.program.program import Program
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload
from tests.campaign.random_models import BATCH, Drawn, drawn
from tests.tracing.straight_run import run_program
from tests.tracing.truth import Reseeded

MODELS, QUICK, STEPS = 300, 10, 3
SEEDS = [
    pytest.param(seed, marks=() if seed < QUICK else pytest.mark.campaign)
    for seed in range(MODELS)
]
CUT, QUICK_CUT = 100, 6
CUT_SEEDS = [
    pytest.param(seed, marks=() if seed < QUICK_CUT else pytest.mark.campaign)
    for seed in range(CUT)
]
EXCEPTIONS = re.compile("batch norm|random")
"""What a share may see otherwise than the batch."""
ROUNDING, HALF_ROUNDING = 1e-4, 5e-2
"""Of the first step, over the largest magnitude; of later ones ten times as much."""
DOUBLE_ROUNDING = 1e-9
"""The same in float64."""
NEGLIGIBLE = 1e-3
"""Of the largest gradient: gradients that are sums of what cancels out are compared with that."""
Step = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Loss and gradients."""


def optimizer_of(seed: int) -> tuple[Optimizer, Any]:
    """A captured optimizer and torch's own."""
    draw = random.Random(seed)
    if draw.random() < 0.4:
        method = adamw(lr=0.01, weight_decay=0.1)
        return method, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)
    options = {
        "momentum": draw.choice([0.0, 0.9]),
        "weight_decay": draw.choice([0.0, 0.1]),
    }
    return sgd(0.01, **options), lambda p: torch.optim.SGD(p, lr=0.01, **options)


def eager_steps(
    case: Drawn, program: Program, make: Any, dtype: str
) -> tuple[list[Step], Any]:
    """A loop as users write it, with the seeds of the program's random ops."""
    model, inputs = case.model, case.inputs
    if dtype == "bfloat16":
        model = model.to(torch.bfloat16)
        inputs = tuple(
            t.to(torch.bfloat16) if t.is_floating_point() else t for t in inputs
        )
    step = StepModule(model, case.loss, inputs)
    optimizer, seeds, found = make(step.parameters()), Reseeded(program), []
    for number in range(STEPS):
        optimizer.zero_grad()
        seeds.begin(number)
        with seeds:
            value = step(*step.inputs())
            value.backward()
        found.append((value.detach().clone(), copy.deepcopy(_gradients(step))))
        optimizer.step()
    return found, step


def _gradients(step: StepModule) -> dict[str, torch.Tensor]:
    named = step.named_parameters()
    return {n.removeprefix("model."): p.grad for n, p in named if p.grad is not None}


def captured_steps(program: Program) -> tuple[list[Step], Mapping[str, torch.Tensor]]:
    found, state = [], None
    for number in range(STEPS):
        result = run_program(program, number, state)
        state = result.state
        found.append((result.loss, result.gradients))
    assert state is not None
    return found, state


def error(ours: torch.Tensor, theirs: torch.Tensor, floor: float = 1e-6) -> float:
    """The largest difference over the largest magnitude."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    ours, theirs = ours.double().nan_to_num(), theirs.double().nan_to_num()
    largest = max(float(theirs.abs().max()), floor)
    return float((ours - theirs).abs().max()) / largest


def errors(ours: Step, theirs: Step) -> Iterator[tuple[str, float]]:
    yield "loss", error(ours[0].reshape(()), theirs[0].reshape(()), 1e-3)
    assert ours[1].keys() == theirs[1].keys()
    largest = max(
        (float(g.abs().nan_to_num().max()) for g in theirs[1].values()), default=0.0
    )
    for name, gradient in theirs[1].items():
        yield name, error(ours[1][name], gradient, max(NEGLIGIBLE * largest, 1e-6))


def captured(model: torch.nn.Module, make: Callable[[], Program]) -> Program | None:
    """The program, or None if it is refused in one line; the model stays as it was."""
    before = copy.deepcopy(model.state_dict())
    program, why = None, ""
    try:
        program = make()
    except GnnplaceError as failure:
        why = str(failure)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert "\n" not in why
    if program is None:
        print(f"refused: {why}")
    return program


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_model_is_equal_or_refused(seed: int) -> None:
    warnings.simplefilter("ignore")
    case, (method, make) = drawn(seed), optimizer_of(seed)
    # A penalty reads the model that it was made with, which a converted copy is not.
    half = random.Random(seed + 1).random() < 0.3 and "penalty" not in case.parts
    dtype, about = "bfloat16" if half else "float32", (case.parts, half, method.name)
    before = copy.deepcopy(case.model.state_dict())
    program = captured(
        case.model,
        lambda: capture(
            case.model, case.inputs, loss=case.loss, optimizer=method, dtype=dtype
        ),
    )
    if program is None:
        return
    try:
        theirs, step = eager_steps(drawn(seed), program, make, dtype)
    except (
        RuntimeError
    ) as failure:  # no model: reentrant regions in torch.autograd.grad, …
        known = ("use_reentrant=True", "not implemented for 'BFloat16'")
        assert any(words in str(failure) for words in known), about  # noqa: PT017
        return
    ours, state = captured_steps(program)
    allowed = HALF_ROUNDING if half or case.half else ROUNDING
    first = dict(errors(ours[0], theirs[0]))
    assert {n: e for n, e in first.items() if e > allowed} == {}, about
    if method.name == "adamw" and any(first.values()):
        return  # its first steps are the sign of the gradient, which rounding may turn
    later = [
        error(a[0].reshape(()), b[0].reshape(()), 1e-2)
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert max(later) <= 10 * allowed, (later, about)
    for name, tensor in step.named_buffers():
        name = name.removeprefix("model.")
        kept = state.get(f"buffer.{name}", before.get(name))
        assert kept is not None
        assert error(kept.to(tensor.dtype), tensor, 1e-2) <= 10 * allowed, (name, about)
    if not any(first.values()) and not any(later):
        print("equal to the last bit")


def whole_batch(case: Drawn) -> Step:
    """One eager step of the user's own model on all of the batch."""
    step = StepModule(case.model, case.loss, case.inputs)
    value = step(*step.inputs())
    value.backward()
    return value.detach(), _gradients(step)


def in_double(case: Drawn) -> Drawn:
    """A model in float64."""
    inputs = tuple(t.double() if t.is_floating_point() else t for t in case.inputs)
    return replace(case, model=case.model.double(), inputs=inputs)


def off_in_double(seed: int, count: int, method: Optimizer) -> dict[str, float]:
    """What is off in float64: a gradient that vanishes is nothing but rounding in float32."""
    case = in_double(drawn(seed))
    work = Workload("random", case.model, case.inputs, case.loss)
    made = run_program(
        with_program_microbatches(
            capture_workload(work, count, optimizer=method), count
        )
    )
    found = errors((made.loss, made.gradients), whole_batch(in_double(drawn(seed))))
    return {name: error for name, error in found if error > DOUBLE_ROUNDING}


@pytest.mark.parametrize("seed", CUT_SEEDS)
def test_micro_batches_of_a_random_model_equal_the_whole_batch_or_are_refused(
    seed: int,
) -> None:
    warnings.simplefilter("ignore")
    case, (method, _) = drawn(seed), optimizer_of(seed)
    count = random.Random(seed + 2).choice([2, BATCH])
    work = Workload("random", case.model, case.inputs, case.loss)
    program = captured(
        case.model, lambda: capture_workload(work, count, optimizer=method)
    )
    if program is None:
        return
    assert program.batch is not None
    exceptions = program.batch.exceptions
    assert all(EXCEPTIONS.search(each) for each in exceptions), exceptions
    made = run_program(with_program_microbatches(program, count))
    assert len(made.losses) == count
    if exceptions:
        print(f"not compared: {'; '.join(exceptions)}")
        return
    try:
        theirs = whole_batch(drawn(seed))
    except RuntimeError as failure:  # no model, as above
        assert "use_reentrant=True" in str(failure), case.parts  # noqa: PT017
        return
    allowed = HALF_ROUNDING if case.half else ROUNDING
    found = dict(errors((made.loss, made.gradients), theirs))
    off = {n: e for n, e in found.items() if e > allowed}
    if off and not case.half:
        off = off_in_double(seed, count, method)
    assert off == {}, (case.parts, count)
    print(f"equal, {count} micro-batches")
