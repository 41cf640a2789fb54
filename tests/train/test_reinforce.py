from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from lightning import LightningModule
from torch import nn
from torch_geometric.nn import MessagePassing

from gnnplace.errors import MismatchError
from gnnplace.graph.orders import LEARNED
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import list_device_limits
from gnnplace.policy.gnn.encoder import Encoder, NullEncoder
from gnnplace.policy.gnn.learned_order import order_gradient
from gnnplace.policy.gnn.rollouts import Episodes
from gnnplace.train import Reinforce, reinforce
from gnnplace.train.data.random_families import RandomDraws, random_problem
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.reinforce import (
    EVEN,
    Lesson,
    advantages,
    compute_device_targets,
    extremes,
    gain_over,
    regret,
    search_briefly,
    unevenness,
)
from tests.policy.problems import constrained_problem
from tests.random_problems import seeds

torch.set_num_threads(1)
SIZES = {"hidden": 16, "layers": 1, "decoder_hidden": 16}
NOTHING = np.zeros(len(list_device_limits(3)))  # said of the number of devices


def sample(seed=1):
    problem = random_problem(
        "inception", seed, RandomDraws(ops=(30, 40), devices=(3, 3), microbatches=(1,))
    )
    return ProblemSample(SearchSpace(problem), seed)


def module(**given):
    torch.manual_seed(0)
    made = Reinforce(**(SIZES | given))
    made.log = lambda *args, **kwargs: None
    return made


def drawn_lesson(made, one):
    episodes = made.episode(one)
    return episodes, made.lesson(
        one, episodes, made.policy.states([episodes.inputs]).detach()
    )


def costs_of(episodes, lesson):
    """What each placement costs for the number of devices that was asked for."""
    return np.array(
        [
            episodes.seconds(devices)
            * unevenness(episodes, devices, lesson.drawn.limit)
            for devices in lesson.drawn.unit_device
        ]
    )


def test_the_baseline_of_a_placement_is_the_mean_of_the_others():
    seconds = np.array([1.0, 2.0, 4.0])
    spread = np.log(seconds).std()
    expected = np.array(
        [np.log(8) / 2, np.log(4) / 2 - np.log(2), np.log(2) / 2 - np.log(4)]
    )
    np.testing.assert_allclose(
        advantages(seconds), (expected / spread).clip(-2, 2), atol=1e-12
    )
    np.testing.assert_allclose(
        advantages(1000 * seconds), advantages(seconds), atol=1e-12
    )
    assert not advantages(np.ones(4)).any()


def test_the_greedy_decode_gains_what_it_is_below_the_draws():
    draws = np.exp([0.0, 1.0, 2.0])
    spread = np.std([0.0, 1.0, 2.0])
    assert gain_over(float(np.exp(0.5)), draws) == pytest.approx(0.5 / spread)
    assert gain_over(float(np.exp(1.5)), draws) == pytest.approx(-0.5 / spread)
    assert gain_over(1e-9, draws) == 2.0
    assert gain_over(1.0, np.ones(4)) == 0.0


def test_the_greedy_decode_is_learned_from_with_its_own_gain():
    made, one = (
        module(samples=8, kept=4, gradient=0.0, label=0.0, greedy=0.5, moves=0),
        sample(),
    )
    episodes, lesson = drawn_lesson(made, one)
    greedy = episodes.greedy(episodes.network(made.policy), lesson.drawn.limit)
    assert (lesson.drawn.unit_device[1] == greedy).all()
    assert lesson.weight[1] != 0.0
    assert not np.delete(lesson.weight, 1).any()


def test_labels_weigh_more_where_the_greedy_decode_is_behind():
    assert regret(1.0, 1.0) == 0.5
    assert regret(float(np.exp(0.05)), 1.0) == pytest.approx(1.0)
    assert regret(10.0, 1.0) == 3.0
    assert regret(0.9, 1.0) == 0.5


def test_large_problems_have_fewer_draws(monkeypatch):
    monkeypatch.setattr(reinforce, "MANY", 1)
    made, one = module(samples=200, shared=0, moves=0), sample()
    taken = []

    def seconds(episodes, drawn):
        taken.append(len(drawn))
        return np.ones(len(drawn))

    monkeypatch.setattr(made, "seconds", seconds)
    drawn_lesson(made, one)
    draws = max(2, round(200 / one.space.problem.num_units))
    assert taken == [draws + len(list_device_limits(3))]


def test_the_extremes_are_the_least_and_the_greatest():
    assert sorted(extremes(np.array([0.0, 3.0, -2.0, 1.0, -1.0]), 2)) == [1, 2]
    assert len(extremes(np.arange(3.0), 8)) == 3


def test_the_label_is_the_best_that_was_ever_drawn():
    made, one = module(samples=8, kept=4, moves=4), sample()
    episodes, lesson = drawn_lesson(made, one)
    costs, known = costs_of(episodes, lesson), (one.index, lesson.drawn.limit)
    assert costs[0] == min(costs) == made.labels[known][0]
    assert lesson.weight[0] == made.label * regret(costs[1], costs[0])
    better = lesson.drawn.unit_device[0].copy()
    made.labels[known] = (costs[0] / 2, better)
    assert (drawn_lesson(made, one)[1].drawn.unit_device[0] == better).all()


def test_what_took_less_becomes_more_likely():
    made, one = module(samples=8, kept=4, label=0.0), sample()
    episodes, lesson = drawn_lesson(made, one)
    assert (
        np.corrcoef(np.log(costs_of(episodes, lesson)[1:]), lesson.weight[1:])[0, 1]
        < -0.9
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_makes_a_placement_more_or_less_likely_by_its_weight(sign):
    made, one = module(learning_rate=1e-2), sample()
    episodes = made.episode(one)
    network = episodes.network(made.policy)
    chosen = episodes.samples(network, 1, np.random.default_rng(0), limit=3)
    chosen = chosen._replace(unit_device=chosen.unit_device[1:])
    optimizer = torch.optim.SGD(made.policy.parameters(), lr=1e-2)

    def loss(weight):
        states = made.policy.states([episodes.inputs])
        return made.loss(episodes, states, Lesson(chosen, np.array([weight]), NOTHING))

    before = float(loss(1.0))
    loss(sign).backward()
    optimizer.step()
    assert (float(loss(1.0)) < before) == (sign > 0)


@pytest.mark.parametrize("given", [{"gradient": 0.0, "greedy": 0.0}, {"label": 0.0}])
def test_either_loss_alone_learns_one_problem(given):
    made, one = module(samples=16, moves=0, kept=16, **given), sample()
    before, episodes = made.place(made.policy, one), made.episode(one)
    drawn = episodes.samples(
        episodes.network(made.policy), 60, np.random.default_rng(0)
    ).unit_device
    mean = np.mean([episodes.seconds(devices) for devices in drawn])
    optimizer = torch.optim.Adam(made.policy.parameters(), lr=6e-3)
    for _ in range(40):
        optimizer.zero_grad()
        made.batch_loss([one]).backward()
        optimizer.step()
        made.labels = {} if given.get("label") == 0.0 else made.labels
    assert made.place(made.policy, one) < min(before, mean) * 0.97


def test_the_best_placements_are_kept_over_an_interruption():
    made, one, checkpoint = module(samples=4), sample(), {}
    drawn_lesson(made, one)
    made.on_save_checkpoint(checkpoint)
    again = module()
    again.on_load_checkpoint(checkpoint)
    assert again.labels.keys() == made.labels.keys()
    ((cost, devices),) = made.labels.values()
    ((found, others),) = again.labels.values()
    assert found == cost
    assert (others == devices).all()


def test_numbers_of_devices_are_wanted_by_their_seconds():
    likely = compute_device_targets(np.array([2.0, 1.0, 1.03]))
    assert likely.sum() == pytest.approx(1.0)
    assert likely[1] > 2 * likely[2] > 100 * likely[0]
    np.testing.assert_allclose(
        compute_device_targets(np.array([2e3, 1e3, 1.03e3])), likely
    )


def test_the_number_of_devices_is_learned_from_the_greedy_decodes():
    made, one = module(label=0.0, gradient=0.0, greedy=0.0, moves=0), sample()
    episodes, limits = made.episode(one), list_device_limits(3)
    optimizer = torch.optim.Adam(made.policy.count.parameters(), lr=2e-2)
    for _ in range(30):
        optimizer.zero_grad()
        made.batch_loss([one]).backward()
        optimizer.step()
    network = episodes.network(made.policy)
    seconds = [episodes.seconds(episodes.greedy(network, limit)) for limit in limits]
    assert network.limit == limits[int(np.argmin(seconds))]


def test_one_device_is_nothing_to_learn():
    problem = random_problem(
        "inception", 1, RandomDraws(ops=(30, 40), devices=(1, 1), microbatches=(1,))
    )
    assert module().batch_loss([ProblemSample(SearchSpace(problem), 0)]) is None


def test_a_start_of_other_sizes_is_refused(tmp_path):
    module().policy.save_pretrained(tmp_path)
    assert torch.equal(
        Reinforce(start=str(tmp_path)).policy.decoder.last, module().policy.decoder.last
    )
    with pytest.raises(MismatchError, match=r"^model\.start .*model\.hidden"):
        module(start=str(tmp_path), hidden=8)


def test_a_start_says_sizes_order_and_encoder_itself(tmp_path):
    torch.manual_seed(0)
    first = Reinforce(hidden=12, memory=5, order="topological", encoder=NullEncoder)
    first.average.save_pretrained(tmp_path)
    again = Reinforce(start=str(tmp_path))
    assert isinstance(again.policy.encoder, Encoder)
    assert again.policy.order == "topological"
    for mine, other in zip(
        again.policy.parameters(), first.policy.parameters(), strict=True
    ):
        assert torch.equal(mine, other)
    with pytest.raises(MismatchError, match=r"model\.encoder; leave these out"):
        Reinforce(start=str(tmp_path), encoder=partial(NullEncoder, hidden=7))


def test_the_package_s_encoder_learns_by_message_passing():
    assert isinstance(module().policy.encoder.layers[0].producers, MessagePassing)


class Normed(nn.Module):
    """An encoder with statistics of its own."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(inputs, 4), nn.BatchNorm1d(4)

    def forward(self, data):
        return self.norm(self.enter(data.x))


def test_statistics_are_averaged_as_parameters_are(monkeypatch):
    """Where no step was counted a tenth of the old stays, each time; counts are copied."""
    monkeypatch.setattr(LightningModule, "optimizer_step", lambda *given: None)
    made = Reinforce(encoder=Normed)
    mean, now = made.average.encoder.norm, made.policy.encoder.norm
    now.running_var.fill_(9.0)
    now.num_batches_tracked.fill_(3)
    for _ in range(2):
        made.optimizer_step(0, 0, None)
    expected = torch.full((4,), 9.0 - 8.0 * 0.1**2)
    assert torch.allclose(mean.running_var, expected)
    assert int(mean.num_batches_tracked) == 3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_an_accelerator_loses_what_one_on_the_cpu_does():
    losses = []
    for device in ("cpu", "cuda"):
        made = module().to(device)
        losses.append(float(made.batch_loss([sample(), sample(2)])))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("order", [LEARNED, f"{LEARNED}+downward-rank"])
def test_a_learned_order_that_took_less_becomes_more_likely(order):
    made, one = module(order=order, label=0.0), sample()
    episodes = made.episode(one)
    graph, rng = episodes.graph.graph, np.random.default_rng(0)
    drawn = episodes.samples(episodes.network(made.policy), 1, rng)
    lesson = Lesson(drawn, np.array([0.0, 1.0]), NOTHING)
    states = made.policy.states([episodes.inputs])
    made.loss(episodes, states, lesson).backward()
    priority = episodes.priority(episodes.network(made.policy))
    csr = graph.successor_offset, graph.successor
    wanted = -order_gradient(*csr, drawn.order[1], priority) @ states.detach().numpy()
    found = made.policy.priority.weight.grad[0].numpy()
    np.testing.assert_allclose(found, wanted / len(priority), rtol=1e-3, atol=1e-5)


def test_a_learned_order_may_begin_with_a_network_of_a_fixed_one(tmp_path):
    fixed = module().policy
    fixed.save_pretrained(tmp_path)
    made = module(order=LEARNED, start=str(tmp_path))
    assert torch.equal(made.policy.decoder.last, fixed.decoder.last)
    assert not made.policy.priority.weight.any()
    assert made.batch_loss([sample()]).isfinite()


torch.set_num_threads(1)


def started(problem, rng):
    """A problem and a random placement of it."""
    episodes = Episodes(SearchSpace(problem), "upward-rank")
    free = rng.integers(problem.num_devices, size=problem.num_units).astype(np.int32)
    first = np.array([np.flatnonzero(row)[0] for row in problem.unit_allowed], np.int32)
    units = np.arange(problem.num_units)
    devices = np.where(problem.unit_allowed[units, free], free, first).astype(np.int32)
    return episodes, (episodes.seconds(devices), devices)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_moves_never_make_a_label_worse_or_go_where_a_unit_may_not_be(seed):
    problem, rng = constrained_problem(seed), np.random.default_rng(seed)
    if not problem.unit_allowed.any(axis=1).all():
        return
    episodes, label = started(problem, rng)
    before = label[1].copy()
    limit = 1 + seed % problem.num_devices
    label = label[0] * unevenness(episodes, label[1], limit), label[1]
    cost, devices = search_briefly(episodes, label, limit, 12, rng)
    assert cost <= label[0]
    uneven = unevenness(episodes, devices, limit)
    assert uneven * episodes.seconds(devices) == pytest.approx(cost)
    assert problem.unit_allowed[np.arange(problem.num_units), devices].all()
    assert (label[1] == before).all()


@pytest.mark.parametrize("draw", [1, 2, 3])
def test_moves_of_clusters_find_what_a_bus_needs(draw):
    shape = {
        "ops": (40, 60),
        "devices": (4, 4),
        "clusters": ("shared",),
        "microbatches": (1,),
    }
    problem, rng = (
        random_problem("inception", 3, RandomDraws(ccr=4.0, **shape)),
        np.random.default_rng(draw),
    )
    episodes, label = started(problem, rng)
    alone = episodes.seconds(np.zeros(problem.num_units, np.int32))
    assert label[0] > 1.5 * alone
    label = label[0] * unevenness(episodes, label[1], 1), label[1]
    assert search_briefly(episodes, label, 1, 300, rng)[0] < 1.05 * alone


def test_without_moves_a_label_stays():
    episodes, label = started(constrained_problem(7), np.random.default_rng(0))
    assert search_briefly(episodes, label, 2, 0, np.random.default_rng(0)) is label


@pytest.fixture(scope="module")
def episodes():
    shape = {"ops": (40, 60), "devices": (4, 4), "microbatches": (1,)}
    return Episodes(
        SearchSpace(random_problem("layered", 5, RandomDraws(**shape))), "upward-rank"
    )


def divided(episodes, shares):
    """Units in turn to devices, so that each has about its share of the work."""
    work, load = episodes.walk.unit_work, np.zeros(len(shares))
    devices = np.zeros(len(work), np.int32)
    for unit in np.argsort(-work, kind="stable"):
        devices[unit] = np.argmin((load + work[unit]) / shares)
        load[devices[unit]] += work[unit]
    return devices


def test_even_use_of_as_many_devices_as_asked_for_costs_nothing_more(episodes):
    for count in (1, 2, 4):
        assert unevenness(episodes, divided(episodes, np.ones(count)), count) == 1.0
    assert unevenness(episodes, divided(episodes, np.array([3.0, 1.0])), 2) == 1.0


def test_devices_that_are_missing_cost_what_is_missing(episodes):
    alone = np.zeros(episodes.space.problem.num_units, np.int32)
    assert unevenness(episodes, alone, 2) == pytest.approx(1.0 + EVEN - 1 / 2)
    assert unevenness(episodes, alone, 4) == pytest.approx(1.0 + EVEN - 1 / 4)


def test_each_device_too_many_costs_another_time_the_seconds(episodes):
    four = divided(episodes, np.ones(4))
    assert unevenness(episodes, four, 2) == 3.0
    assert unevenness(episodes, four, 1) == 4.0
