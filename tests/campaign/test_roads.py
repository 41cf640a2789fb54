"""Random models down every road: trained as plain PyTorch trains them, or refused in one line.

Each is trained for two steps of SGD by a compiled loop, by plans (stages, replicas, shards, ZeRO,
recomputation, micro-batches), by `shard` and by Lightning. Losses, the gradients of the first step
and what is learned are compared with plain PyTorch on the whole batch; a model that draws random
numbers or changes buffers with its shares one after the other, and its draws seeded as a plan
seeds them (a compiled loop draws others, and is not compared then). What is off by more than
rounding in float32 is run again in float64. A seed goes down a few of the roads, by turns.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import GnnplaceError
from gnnplace.lightning import PlacedStrategy
from gnnplace.run.planned.draws import draw_as_plan
from gnnplace.tracing.loading import make_shares
from gnnplace.tracing.models import capture_workload
from gnnplace.zoo import Workload
from tests.campaign.random_models import BATCH, Drawn, usual
from tests.campaign.test_differential import NEGLIGIBLE, error, in_double
from tests.run.planned.toys import plan_for
from tests.run.programs import cpu_cluster, random_placement
from tests.sharding.mesh_processes import on_processes

MODELS, QUICK, STEPS, RATE = 300, 2, 2, 0.05
PLANS = {
    "stages": ("pp=2,microbatch_size=2", 2),
    "replicas": ("dp=2,microbatch_size=2", 2),
    "shards": ("tp=2,microbatch_size=4", 2),
    "ZeRO": ("dp=2,zero=3,microbatch_size=1", 2),
    "recomputed": ("microbatch_size=2,recompute=full", 1),
}
"""Words of a plan, and how many processes it has."""
ROADS = (*PLANS, "compile", "shard", "Lightning")
A_SEED = 2
"""Roads that each seed goes down."""
TRIALS = [
    pytest.param(seed, ROADS[(seed + 3 * turn) % len(ROADS)],
                 marks=() if seed < QUICK else pytest.mark.campaign)
    for seed in range(MODELS) for turn in range(A_SEED)
]  # fmt: skip
ROUNDING, HALF_ROUNDING, DOUBLE_ROUNDING = 1e-4, 5e-2, 1e-9
DRAWS = ("dropout", "noise", "encoder")
RAW = re.compile(
    r"\n|Traceback|\b(Runtime|Type|Value|Assertion|Attribute|Key|Index)Error\b|0x[0-9a-f]{6}"
)
Numbers = dict[str, torch.Tensor]
Sent = dict[str, NDArray[np.float64]]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)


def trained(
    model: nn.Module, step: Callable[[int], torch.Tensor], parameters: Any
) -> Numbers:
    """Losses, first gradients and what is learned; `step` leaves gradients and returns a loss."""
    optimizer, found = sgd(parameters), Numbers()
    for number in range(STEPS):
        optimizer.zero_grad()
        found[f"loss {number}"] = step(number).detach().clone()
        if number == 0:
            named = model.named_parameters()
            found |= {
                f"gradient {n}": p.grad.clone() for n, p in named if p.grad is not None
            }
        optimizer.step()
    return found | {n: t.detach().clone() for n, t in model.state_dict().items()}


def plain(case: Drawn, shares: int, replicas: int = 1) -> Numbers:
    """Plain PyTorch, on the whole batch or share after share; replicas begin with equal buffers."""
    work = Workload("", case.model, case.inputs, case.loss)

    def step(number: int) -> torch.Tensor:
        outputs, begun = [], {n: t.clone() for n, t in case.model.named_buffers()}
        with draw_as_plan(0, number, 0) as draws:
            for k, inputs in enumerate(
                make_shares(work, shares) if shares > 1 else [case.inputs]
            ):
                if k and k * replicas % shares == 0:
                    again = {n: t.clone() for n, t in begun.items()}
                    case.model.load_state_dict(again, strict=False, assign=True)
                draws.begin(k)
                outputs.append(case.model(inputs[0]))
            loss = case.loss(torch.cat(outputs), case.inputs[1])
            loss.backward()
        return loss

    return trained(case.model, step, case.model.parameters())


def sendable(numbers: Numbers) -> Sent:
    """Numbers as they go from process to process."""
    return {name: tensor.detach().double().numpy() for name, tensor in numbers.items()}


def received(parts: Iterable[Sent | str]) -> Numbers:
    """Numbers of all processes, or the error that one ended with."""
    found: Numbers = {}
    for part in parts:
        if isinstance(part, str):
            raise GnnplaceError(part)
        found |= {name: torch.from_numpy(array) for name, array in part.items()}
    return found


def planned(case: Drawn, words: str, count: int, again: Callable[[], Drawn]) -> Numbers:
    """The steps of a plan, on its processes."""
    plan = plan_for(Workload("", case.model, case.inputs, case.loss), words, count)

    def work(rank: int) -> Sent | str:
        own = again()
        try:
            runner = plan.apply(own.model, own.inputs, loss=own.loss)
            optimizer, found = sgd(runner.parameters()), Numbers()
            for number in range(STEPS):
                found[f"loss {number}"] = runner.step(runner.share(own.inputs)).detach()
                if number == 0:
                    gradients = runner.gradients()
                    found |= {f"gradient {n}": g.clone() for n, g in gradients.items()}
                optimizer.step()
            return sendable(found | runner.state_dict())
        except GnnplaceError as failure:
            return str(failure)

    return received(on_processes(count, work) if count > 1 else [work(0)])


def compiled(case: Drawn) -> Numbers:
    """The steps of a compiled loop on two workers."""
    work = Workload("", case.model, case.inputs, case.loss)
    program = capture_workload(work)
    problem = profile(replace(program, initial={}), cpu_cluster(2), groups=20)
    placement, optimizer = (
        random_placement(problem, 0, shuffle=False),
        sgd(case.model.parameters()),
    )
    options = {
        "loss": case.loss,
        "problem": problem,
        "inputs": case.inputs,
        "timeout": 60.0,
    }
    with gnnplace.compile(case.model, placement, optimizer, **options) as compiled_step:
        found = Numbers()
        for number in range(STEPS):
            optimizer.zero_grad()
            loss = compiled_step.loss(case.inputs)
            loss.backward()
            found[f"loss {number}"] = loss.detach()
            if number == 0:
                named = case.model.named_parameters()
                found |= {
                    f"gradient {n}": p.grad.clone()
                    for n, p in named
                    if p.grad is not None
                }
            optimizer.step()
        return found | {n: t.clone() for n, t in compiled_step.state_dict().items()}


def sharded(case: Drawn, again: Callable[[], Drawn]) -> Numbers:
    """Loss and gradients of a model over the shards that `shard` chooses, on two processes."""
    plan = gnnplace.shard(case.model, case.inputs, 2, loss=case.loss)

    def work(rank: int) -> Sent | str:
        own = again()
        try:
            model = plan.apply(own.model, loss=own.loss)
            loss = model(*own.inputs)
        except GnnplaceError as failure:
            return str(failure)
        loss.backward()
        found = {"loss 0": loss.detach().clone()}
        for name, parameter in own.model.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                whole = getattr(gradient, "full_tensor", lambda kept=gradient: kept)()
                found[f"gradient {name}"] = whole.clone()
        return sendable(found)

    return received(on_processes(2, work)[:1])


class Module(pl.LightningModule):
    """A random model as Lightning has it."""

    def __init__(self, case: Drawn) -> None:
        super().__init__()
        self.model, self.losses, self._case = case.model, list[torch.Tensor](), case

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self._case.loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd([p for p in self.parameters() if p.requires_grad])


def fitted(case: Drawn, **options: Any) -> Numbers:
    """What Lightning's Trainer learns."""
    module = Module(case)
    data = torch.utils.data.TensorDataset(
        *(x.repeat_interleave(1, 0) for x in case.inputs)
    )
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=BATCH))
    return {n: t.detach().clone() for n, t in case.model.state_dict().items()}


def placed(case: Drawn) -> Numbers:
    """The same with placed workers."""
    strategy = PlacedStrategy(
        cluster="cpu:2", placer="round-robin", budget=0, timeout=60.0
    )
    return fitted(case, strategy=strategy)


def off(
    found: Mapping[str, torch.Tensor], expected: Numbers, allowed: float
) -> Iterator[str]:
    """What is otherwise; of `shard` and Lightning fewer numbers are there."""
    assert found.keys() <= expected.keys()
    gradients = [
        float(g.abs().max()) for n, g in expected.items() if n.startswith("gradient")
    ]
    floor = max(NEGLIGIBLE * max(gradients, default=0.0), 1e-6)
    for name, ours in found.items():
        theirs = expected[name]
        apart = error(ours.reshape(theirs.shape).to(theirs.dtype), theirs, floor)
        if apart > allowed * (1 if "0" in name or name.startswith("gradient") else 10):
            yield f"{name}: {apart:.1e}"


def moving(case: Drawn) -> set[str]:
    """Buffers that a forward pass changes, such as running averages."""
    before = {n: t.clone() for n, t in case.model.named_buffers()}
    case.loss(case.model(case.inputs[0]), case.inputs[1])
    return {n for n, t in case.model.named_buffers() if not torch.equal(t, before[n])}


def gone(
    seed: int, road: str, make: Callable[[int], Drawn], allowed: float
) -> tuple[str, ...]:
    """What comes out otherwise than plain PyTorch's; the refusal as a GnnplaceError."""
    case, again = make(seed), lambda: make(seed)
    words, count = PLANS.get(road, ("", 1))
    random, moved = any(p in DRAWS for p in case.parts), moving(make(seed))
    size = int(re.search(r"microbatch_size=(\d)", words)[1]) if words else BATCH  # type: ignore[index]
    replicas = 2 if "dp=2" in words else 1
    expected = plain(make(seed), BATCH // size if random or moved else 1, replicas)
    if words:
        found = planned(case, words, count, again)
    else:
        found = {"compile": compiled, "Lightning": placed}.get(
            road, lambda case: sharded(case, again)
        )(case)
    if random and not words:
        return ()
    if words:  # every share moves them, as in gradient accumulation
        found = {n: t for n, t in found.items() if n not in moved}
    return tuple(off(found, expected, allowed))


@pytest.mark.parametrize(("seed", "road"), TRIALS)
def test_a_random_model_is_trained_as_pytorch_trains_it_or_refused(
    seed: int, road: str, counted: Callable[[str, int], None]
) -> None:
    """Processes begin and end for some roads: 1 to 3 s."""
    warnings.simplefilter("ignore")
    case = usual(seed)
    try:
        differs = gone(seed, road, usual, HALF_ROUNDING if case.half else ROUNDING)
    except GnnplaceError as failure:
        assert not RAW.search(str(failure)), (str(failure), case.parts)  # noqa: PT017
        counted(f"{road}: refused", 1)
        print(f"refused: {failure}")
        return
    except (RuntimeError, ValueError) as failure:
        known = (
            "not have been used in the graph",
            "Expected more than 1 value per channel",
        )
        assert any(words in str(failure) for words in known), case.parts  # noqa: PT017
        counted("no model of eager PyTorch either", 1)
        return
    if differs and not case.half:
        # In which power iterations, too, tell shares apart.
        with suppress(GnnplaceError):
            differs = gone(
                seed, road, lambda seed: in_double(usual(seed)), DOUBLE_ROUNDING
            )
    assert not differs, (differs, case.parts)
    counted(f"{road}: equal", 1)
