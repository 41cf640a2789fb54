from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnnplace.data.random_families import random_problem
from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.rollouts import Decisions, Rollouts
from gnnplace.policy.refine.passes import Passes
from gnnplace.train import CostToGo, Imitation
from gnnplace.train.data import ProblemDataModule, Sample
from gnnplace.train.decisions import alike
from gnnplace.train.labels import Label
from gnnplace.train.loading import EpochSampler

torch.set_num_threads(1)
SIZES = {"hidden": 8, "layers": 1, "decoder_hidden": 8}


def sample(index=1, label=None):
    problem = random_problem("inception", index, ops=(30, 50), devices=(3, 3), microbatches=(1,))
    return Sample(SearchSpace(problem), index, label=label)


def test_regrets_are_what_finishing_after_each_candidate_costs():
    torch.manual_seed(0)
    module = CostToGo(decisions=4, candidates=2, aims=1, **SIZES)
    [lesson] = module.lessons([sample()])
    assert lesson.values.shape == (4, 3)
    tried = np.isfinite(lesson.values)
    assert (tried.sum(axis=1) <= 2).all()
    assert (lesson.decisions.allowed | ~tried).all()
    assert (np.nanmin(lesson.values, axis=1) == 0).all()
    assert np.nanmax(lesson.values) > 0


def test_decisions_that_are_settled_are_not_picked():
    module = CostToGo(decisions=5, **SIZES)
    scores = np.array([[0.0, -50.0], [0.0, -0.1], [1.0, -np.inf]])
    assert module._pick(scores, np.random.default_rng(0)).tolist() == [1]


def test_expected_regret_falls_with_the_score_of_the_dear_candidate():
    module = CostToGo(**SIZES)
    values = torch.tensor([[0.0, 0.1, torch.nan]])
    losses = [
        float(module.decision_loss(torch.tensor([[0.0, dear, 99.0]]), values))
        for dear in (1.0, 0.0, -1.0)
    ]
    assert losses[0] > losses[1] > losses[2] > 0
    assert losses[1] == pytest.approx(5.0)


@pytest.mark.parametrize("kind", [CostToGo, Imitation])
def test_steps_on_one_batch_lower_its_loss(kind):
    torch.manual_seed(0)
    module = kind(learning_rate=3e-3, **SIZES)
    device = np.arange(sample().space.problem.num_units, dtype=np.int32) % 3
    batch = [sample(label=Label(1, Aim("upward-rank", 2), device, 0.1))]
    lessons = module.lessons(batch)
    optimizer = torch.optim.Adam(module.policy.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss = module.loss(lessons)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


def test_imitation_says_when_there_are_no_labels():
    with pytest.raises(InputError, match=r"data\.labels"):
        Imitation(**SIZES).lessons([sample()])


def test_candidates_that_look_alike_share_the_first_of_them():
    features = np.zeros((1, 4, 2), np.float32)
    features[0, 2] = 1.0
    allowed = np.array([[True, True, True, False]])
    nothing = np.zeros(1, np.int32)
    seen = Decisions(features, allowed, nothing, nothing, nothing)
    assert alike(seen).tolist() == [[0, 0, 2, -1]]


def test_epochs_bring_new_problems_and_the_same_seed_the_same_ones():
    sampler = EpochSampler(3)
    assert list(sampler) == [0, 1, 2]
    sampler.set_epoch(2)
    assert list(sampler) == [6, 7, 8]
    names = [
        [s.space.problem.name for batch in module.train_dataloader() for s in batch]
        for module in (ProblemDataModule(problems=6), ProblemDataModule(problems=6))
    ]
    assert names[0] == names[1]
    assert len(set(names[0])) == 6


def test_training_validation_and_test_problems_are_apart():
    module = ProblemDataModule(
        validation_problems=4, test_problems=4, problems=14, held_out_ops=(20, 30)
    )
    names = [
        {s.space.problem.name.rsplit("-", 1)[0] for batch in loader for s in batch}
        for loader in (
            module.train_dataloader(),
            module.val_dataloader(),
            module.test_dataloader(),
        )
    ]
    assert not names[0] & names[1]
    assert not (names[0] | names[1]) & names[2]


def test_validation_is_the_policy_over_the_heuristics():
    torch.manual_seed(0)
    module = CostToGo(**SIZES)
    one = sample()
    rollouts = Rollouts(one.space, module.policy)
    step_time = Passes(rollouts).best(rollouts.greedy()).score
    ratio = module._log_ratio(Sample(one.space, 1, reference=2 * step_time))
    assert ratio == pytest.approx(np.log(0.5))


def test_a_process_without_lessons_takes_its_step_with_the_others():
    module = CostToGo(**SIZES)
    module._trainer = SimpleNamespace(world_size=2)
    module.lessons = lambda batch: []
    module.log = lambda *args, **given: None
    module.training_step([], 0).backward()
    assert all(torch.count_nonzero(p.grad) == 0 for p in module.policy.parameters())
    module._trainer = SimpleNamespace(world_size=1)
    assert module.training_step([], 0) is None


def test_the_quality_leaves_out_problems_without_a_reference():
    module = CostToGo(**SIZES)
    reduce = lambda tensor, reduce_op: 2 * tensor  # noqa: E731
    module._trainer = SimpleNamespace(strategy=SimpleNamespace(reduce=reduce))
    module.ratios = [np.log(0.5), np.nan, np.log(2.0), np.log(0.5)]
    ratio, better = module.quality()
    assert ratio == pytest.approx(0.5 ** (1 / 3))
    assert better == pytest.approx(2 / 3)
    module.ratios = [np.nan]
    assert np.isnan(module.quality()[0])
