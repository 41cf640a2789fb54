"""Chains of captured models: cuts, parameters, times, and losses that a cut batch keeps."""

import operator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace import zoo
from gnnplace.cli.main import run
from gnnplace.costs.floors import EAGER, NO_FLOOR
from gnnplace.costs.profiling.estimation import estimate_times
from gnnplace.errors import CaptureError, InputError
from gnnplace.planning.plans import plan_model
from gnnplace.plans.answers import find_plans, price_given_plan
from gnnplace.plans.job import SearchOptions, TrainingJob
from gnnplace.plans.segments.chain import WEIGHTS, SplitChoice
from gnnplace.plans.segments.chains import (
    COUNTED,
    capture_chain,
    capture_layer_chain,
    shorten_lists,
)
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.tracing.loading import load
from gnnplace.tracing.models import capture_model
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program.program import BACKWARD, FORWARD, UPDATE
from tests.run.planned.toys import cpus
from tests.tracing.test_models import SIZES

CLUSTER = make_preset("nvlink-a100-8")
LAYERS = 3
GPT2 = f"gpt2?layers={LAYERS}&width=256&heads=4&vocabulary=512&length=128&batch=8&dropout=0.0"
SMALL = "gpt2?layers=3&width=64&heads=4&vocabulary=128&length=32&batch=8"


@pytest.fixture(scope="module")
def chain():
    return capture_chain(TrainingJob(GPT2), CLUSTER)


def test_blocks_are_cut_where_one_tensor_crosses_and_equal_ones_are_of_one_kind(chain):
    kinds = [segment.kind for segment in chain.segments]
    assert len(chain) >= 2 * LAYERS + 1
    assert len(set(kinds)) <= len(kinds) // 2 + 2
    hidden = 4 * 128 * 256  # bytes of float32 an example
    assert min(chain.border[1:-1]) == hidden
    assert np.count_nonzero(chain.border[1:-1] == hidden) >= 2 * LAYERS - 1


def test_parameters_are_those_of_the_model_and_shards_divide_them(chain):
    costs = chain.costs(["a100"], (1,), 8)
    total = sum(p.numel() for p in load(GPT2, fake=True).model.parameters())
    twice = sum(tied.elements * (len(tied.segments) - 1) for tied in chain.tied)
    assert costs.parameters.sum() == pytest.approx(total + twice)
    halves = chain.costs(["a100"], (2,), 8, SplitChoice(WEIGHTS))
    assert total / 2 <= halves.parameters.sum() < total


@pytest.mark.parametrize(
    "spec",
    [
        "gpt2?layers=2&width=1024&heads=16&vocabulary=8192&length=512&batch=8&dropout=0.0",
        "small_resnet?batch=8",
        pytest.param("unet?batch=8", marks=pytest.mark.campaign),
        pytest.param("resnet50?batch=64", marks=pytest.mark.campaign),
    ],
)
def test_passes_and_updates_take_what_the_ops_of_the_captured_step_take(
    spec, monkeypatch
):
    """With the host and without it; both recorders run, two to three seconds a model."""
    chain = capture_chain(TrainingJob(spec), CLUSTER)
    options = CaptureOptions(optimizer=chain.optimizer)
    program = capture_model(spec, options=options, fake=True)
    phase = np.array([op.phase for op in program.ops])
    for floor in (EAGER, NO_FLOOR):
        monkeypatch.setattr("gnnplace.plans.segments.parts.EAGER", floor)
        monkeypatch.setattr("gnnplace.costs.profiling.estimation.EAGER", floor)
        costs = replace(chain.source).costs("a100", (1,), chain.batch)
        seconds = estimate_times(program, "a100").seconds
        forward, backward, update = (
            seconds[phase == which].sum() for which in (FORWARD, BACKWARD, UPDATE)
        )
        gradients = (costs.backward + costs.weights).sum()
        assert costs.forward.sum() == pytest.approx(forward, rel=0.03)
        assert gradients == pytest.approx(backward, rel=0.06)
        step = costs.forward.sum() + gradients + costs.update.sum()
        assert step == pytest.approx(forward + backward + update, rel=0.02)


def test_shards_are_faster_than_one_and_slower_than_their_number():
    big = capture_layer_chain(
        TrainingJob(
            "hf:gpt2-medium?n_layer=1&batch=8&length=512", precision="bf16-true"
        ),
        CLUSTER,
    )
    seconds = [big.costs(["a100"], (shards,), 8).forward.sum() for shards in (1, 2, 4)]
    assert seconds[0] > seconds[1] > 0.5 * seconds[0]
    assert seconds[2] > 0.25 * seconds[0]


def test_skips_cross_the_cuts_between():
    chain = capture_chain(TrainingJob("unet?batch=2"), CLUSTER)
    crossing = [len(values) for values in chain.source.cuts.crossing]
    assert max(crossing) >= 3
    assert crossing[0] == 0


def test_the_batch_is_resized_and_wrong_words_are_refused():
    assert capture_chain(TrainingJob(SMALL, batch=12), CLUSTER).batch == 12
    with pytest.raises(
        InputError, match="precision 'fp8': products in FP8 are not priced"
    ):
        plan_model(SMALL, CLUSTER, precision="fp8")
    with pytest.raises(InputError, match="optimizer 'lamb': unknown"):
        plan_model(SMALL, CLUSTER, optimizer="lamb")
    with pytest.raises(
        InputError, match="optimizer lion: is priced of models by their sizes"
    ):
        plan_model(SMALL, CLUSTER, optimizer="lion")


def test_a_model_is_planned_with_a_bound():
    plan = plan_model(SMALL, CLUSTER, batch=16, budget=1000.0)[0]
    assert plan.feasible
    assert plan.file.lower_bound <= plan.step_time
    assert set(plan.file.memory) <= {device.name for device in CLUSTER.devices}
    members = [name for stage in plan.file.stages for name in stage.members]
    assert len(members) == len(set(members))


def network():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


def chain_with(loss, **options):
    return capture_chain(
        TrainingJob(network(), torch.zeros(8, 16), loss=loss, **options), CLUSTER
    )


def test_a_mean_may_be_cut():
    found = chain_with(lambda y: y.square().mean())
    assert (found.mixes, found.notices) == ("", ())


def test_a_sum_may_be_cut_and_is_one_in_the_file():
    found = chain_with(lambda y: 2 * y.square().sum())
    assert (found.mixes, found.loss) == ("", "sum")
    assert price_given_plan(found, CLUSTER, "dp=2").file.loss == "sum"
    assert chain_with(lambda y: y.square().mean()).loss == "mean"


def test_a_mean_over_counts_is_noticed():
    found = capture_chain(TrainingJob(SMALL), CLUSTER)
    assert (found.mixes, found.notices) == ("", (COUNTED,))


def pairs(y):
    return (y @ y.T).logsumexp(1).mean()


class OverCounts(nn.Module):
    """A mean of marked examples, over their number and one more."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, marked):
        each = self.two(self.one(x)).square().sum(1)
        return (each * marked).sum() / (marked.sum() + 1)


def test_a_mean_over_counts_and_one_keeps_its_batch():
    """Of two shares of 4 marked examples each the mean has 5 and 5 below, that of the batch 9."""
    given = torch.randn(8, 16), torch.ones(8)
    found = capture_chain(TrainingJob(OverCounts(), given, loss=lambda y: y), CLUSTER)
    assert "it reads what 'add' makes of the whole batch" in found.mixes
    with pytest.raises(InputError, match="accept-other-loss"):
        price_given_plan(found, CLUSTER, "dp=2")


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda y: y, r"the loss has shape \(8, 16\), not that of a scalar"),
        (lambda y: y.argmax().float(), "nothing learns"),
        (lambda y: y.detach().sum(), "nothing learns"),
    ],
)
def test_what_has_no_gradient_is_refused(loss, told):
    """`backward` of PyTorch refuses such a loss too, but only in the first step."""
    with pytest.raises(RuntimeError):
        loss(network()(torch.zeros(8, 16))).backward()
    with pytest.raises(CaptureError, match=told):
        chain_with(loss)


def test_no_example_is_refused():
    with pytest.raises(InputError, match="hold no example"):
        capture_chain(
            TrainingJob(network(), torch.zeros(0, 16), loss=lambda y: y.mean()), CLUSTER
        )


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (
            lambda y: y.square().sum() + y.mean(),
            "sum over the examples beside other terms",
        ),
        (pairs, "matmul"),
        (lambda y: (y - torch.zeros(8, 16)).square().mean(), "broadcast"),
    ],
)
def test_what_is_no_mean_keeps_its_batch(loss, told):
    found = chain_with(loss)
    assert told in found.mixes
    plan = find_plans(found, CLUSTER, SearchOptions(budget=0.0))[0]
    assert plan.microbatches == 1
    assert all(len(stage.devices) == 1 for stage in plan.file.stages)
    assert any("the batch stays whole" in notice for notice in plan.notices)
    with pytest.raises(InputError, match="accept-other-loss"):
        price_given_plan(found, CLUSTER, "dp=2")


def test_where_nothing_fits_the_whole_batch_is_told_first():
    """Micro-batches of the same model fit, which nobody may take."""
    model, inputs = network(), torch.zeros(100_000, 16)
    small = [d.model_copy(update={"memory": 3e6}) for d in CLUSTER.devices]
    cluster = replace(CLUSTER, devices=tuple(small))
    cut = capture_chain(
        TrainingJob(model, inputs, loss=lambda y: y.square().mean()), cluster
    )
    assert find_plans(cut, cluster, SearchOptions(budget=0.0))[0].feasible
    whole = capture_chain(
        TrainingJob(model, inputs, loss=lambda y: y.square().sum() + y.mean()), cluster
    )
    reason = find_plans(whole, cluster, SearchOptions(budget=0.0))[0].reason
    assert reason.startswith(
        "the batch stays whole, since the loss has a sum over the examples"
    )
    assert "nothing fits; the leanest plan: gpu:1 lacks" in reason


def test_one_may_know_better():
    found = chain_with(pairs, accept_other_loss=True)
    assert found.mixes == ""
    assert found.notices[0].startswith("accepted although")
    assert price_given_plan(found, CLUSTER, "dp=2").feasible


def test_lists_of_modules_are_shortened_and_come_back():
    model = load("gpt2?layers=6&width=64&heads=4&vocabulary=128", fake=True).model
    before = list(model.state_dict())
    with shorten_lists(model):
        assert len(model.transformer.h) == 2
    assert list(model.state_dict()) == before


MODULE = """
import torch

def model(batch=8):
    return torch.nn.Linear(16, 16), (torch.zeros(batch, 16),), lambda y: (y @ y.T).amax(1).mean()
"""


def test_a_loss_over_pairs_is_refused_on_the_command_line(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "pairing.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    arguments = [
        "plan",
        "pairing:model",
        "--cluster",
        "nvlink-a100-8",
        "--given",
        "dp=2",
    ]
    assert run(arguments) == 2
    assert "the batch cannot be cut" in capsys.readouterr().err
    assert run([*arguments, "--accept-other-loss"]) == 0


class Adapted(nn.Module):
    """A frozen product with a trained one of low rank beside it."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Linear(64, 64, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)

    def forward(self, x):
        return torch.tanh(self.whole(x) + self.up(self.down(x)))


def test_frozen_parameters_take_their_own_bytes_alone():
    model, x = Adapted(), torch.randn(4, 64)
    found = capture_chain(
        TrainingJob(model, (x, x), loss=nn.functional.mse_loss, optimizer="adamw"),
        CLUSTER,
    )
    plan = price_given_plan(found, CLUSTER, "dp=2,microbatch_size=2")
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
    kept = [t for p in model.parameters() for t in (p, p.grad) if t is not None]
    kept += [
        t for state in optimizer.state.values() for t in state.values() if t.numel() > 1
    ]
    state = next(iter(plan.file.memory.values())).state
    assert state == 4 * sum(t.numel() for t in kept)


def odd_ops(batch: int = 8):
    """A product of `torch.linalg.householder_product`, which no rule knows."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return torch.linalg.householder_product(self.layer(x), x[:, 0])

    return (
        Model(),
        (torch.rand(batch, 4, 4), torch.rand(batch, 4, 4)),
        nn.functional.mse_loss,
    )


def mixing_ops(batch: int = 8):
    """The same over pairs of examples."""
    model, inputs, _ = odd_ops(batch)
    return (
        model,
        inputs,
        lambda out, target: (out.flatten(1) @ out.flatten(1).t()).mean() ** 2,
    )


def test_numbers_decide_where_rules_do_not_by_name_and_in_python_alike():
    for build in (odd_ops, mixing_ops):
        model, inputs, loss = build()
        named = capture_chain(TrainingJob(f"{__name__}:{build.__name__}"), CLUSTER)
        given = capture_chain(TrainingJob(model, inputs, loss=loss), CLUSTER)
        assert bool(named.mixes) == bool(given.mixes) == (build is mixing_ops)


@pytest.mark.parametrize("name", zoo.list_workload_names())
def test_no_architecture_of_the_zoo_is_refused(name):
    """Nor one whose LSTM goes both ways, of whose gradients two are one tensor."""
    sizes = "&".join(f"{key}={size}" for key, size in SIZES[name].items())
    assert capture_chain(TrainingJob(f"{name}?{sizes}"), cpus(2)).segments


class Penalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = x.detach().requires_grad_()
        made = self.layer(x).tanh()
        (slope,) = torch.autograd.grad(made.sum(), x, create_graph=True)
        return made.mean() + slope.square().mean()


def test_a_gradient_within_the_forward_pass_is_refused():
    with pytest.raises(
        CaptureError, match="a gradient within the forward pass has no part"
    ):
        plan_model(
            Penalised(),
            cpus(1),
            (torch.ones(8, 4),),
            batch=8,
            given="microbatch_size=8",
        )


class Counted(nn.Sequential):
    """Two layers between which buffers are read or changed."""

    def __init__(self, change):
        super().__init__(nn.Linear(8, 8), nn.Linear(8, 8))
        self.register_buffer("table", torch.ones(4, 8))
        self.change = change

    def forward(self, x):
        return self[1](self[0](x) * self.change(self.table))


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda table: 1 - table[:1], 0),
        (lambda table: table.add_(1.0)[:1], 1),
        (lambda table: operator.iadd(table, 1.0)[:1], 1),
        (lambda table: operator.setitem(table, 0, 1.0) or table[:1], 1),
    ],
)
def test_buffers_that_are_changed_are_stored_and_those_that_are_read_are_not(
    change, count
):
    inputs = torch.randn(8, 8), torch.randn(8, 8)
    source = capture_chain(
        TrainingJob(Counted(change), inputs, loss=nn.functional.mse_loss), cpus(2)
    ).source
    calls = range(len(source.layers.calls.calls))
    assert len(source.stored(calls)) == count
