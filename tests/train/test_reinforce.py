from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.data.random_families import random_problem
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.train import Reinforce
from gnnplace.train.data import Sample
from gnnplace.train.reinforce import advantages

torch.set_num_threads(1)
SIZES = {"hidden": 8, "layers": 1, "decoder_hidden": 8}


def space(seed):
    problem = random_problem("inception", seed, ops=(30, 40), devices=(3, 3), microbatches=(1,))
    return SearchSpace(problem)


def module(**given):
    torch.manual_seed(0)
    return Reinforce(**SIZES, **given)


def test_the_baseline_of_a_placement_is_the_mean_of_the_others():
    costs = np.array([1.0, 2.0, 4.0])
    expected = [np.log(8) / 2 - 0.0, np.log(4) / 2 - np.log(2), np.log(2) / 2 - np.log(4)]
    np.testing.assert_allclose(advantages(costs), expected, atol=1e-12)
    np.testing.assert_allclose(advantages(1000 * costs), expected, atol=1e-12)


def test_lessons_hold_what_was_drawn_with_its_probability():
    reinforce = module(samples=4, aims=1, sparsest=1.0)
    lessons = reinforce.lessons([Sample(space(1), 0)])
    assert len(lessons) == 4
    gains = [float(lesson.values[0, 1]) for lesson in lessons]
    assert sum(gains) == pytest.approx(0.0, abs=1e-3)
    assert max(gains) > 0
    for lesson in lessons:
        seen, (drawn, _, before) = lesson.decisions, lesson.values.T
        np.testing.assert_array_equal(drawn, seen.chosen)
        assert seen.allowed[np.arange(len(drawn)), drawn.astype(int)].all()
        assert (before < 0).all()


def test_placements_are_kept_for_all_passes_over_a_batch():
    reinforce, batch = module(samples=2, aims=1), [Sample(space(1), 0)]
    first = reinforce.lessons(batch)
    assert reinforce.lessons(batch) is first
    assert reinforce.lessons([Sample(space(1), 0)]) is not first


def test_the_first_pass_is_the_policy_gradient():
    reinforce = module(entropy=0.0, temperature=0.5)
    scores = torch.tensor([[0.3, -0.2, -torch.inf]], requires_grad=True)
    log = torch.log_softmax(scores / 0.5, dim=1)[0, 1]
    values = torch.tensor([[1.0, 2.5, float(log)]])
    reinforce.decision_loss(scores, values).sum().backward()
    found, scores.grad = scores.grad.clone(), None
    (-2.5 * torch.log_softmax(scores / 0.5, dim=1)[0, 1]).backward()
    torch.testing.assert_close(found, scores.grad)


@pytest.mark.parametrize(("advantage", "ratio", "moves"), [(1, 1.5, 0), (1, 0.5, 1), (-1, 0.5, 0)])
def test_steps_stop_where_the_policy_has_moved_enough(advantage, ratio, moves):
    reinforce = module(entropy=0.0, temperature=1.0)
    scores = torch.zeros(1, 2, requires_grad=True)
    values = torch.tensor([[0.0, float(advantage), np.log(0.5 / ratio)]])
    reinforce.decision_loss(scores, values).sum().backward()
    assert bool(scores.grad.abs().sum() > 0) == bool(moves)


def test_the_entropy_bonus_levels_the_scores():
    reinforce = module(temperature=1.0)
    scores = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
    values = torch.tensor([[0.0, 0.0, -0.3]])
    reinforce.decision_loss(scores, values).sum().backward()
    assert scores.grad[0, 0] > 0 > scores.grad[0, 1]
    assert torch.isfinite(scores.grad).all()


def mean_draw(spaces, reinforce):
    """Mean log seconds of placements drawn under the same aims with the same noise."""
    rng, logs = np.random.default_rng(5), []
    for each in spaces:
        rollouts = Rollouts(each, reinforce.policy)
        several = sorted((aim for aim in rollouts.aims if aim.limit > 1), key=lambda aim: aim.limit)
        for aim in several[:3]:
            walks = [rollouts.walk(aim, noise=rollouts.noise(rng, 0.25)) for _ in range(12)]
            logs += [np.log(rollouts.finish(aim, walked).score) for walked in walks]
    return np.mean(logs)


def test_training_on_a_few_problems_makes_what_is_drawn_better():
    spaces = [space(seed) for seed in range(3)]
    reinforce = module(learning_rate=3e-3, samples=6, aims=1)
    optimizer = reinforce.configure_optimizers()["optimizer"]
    before = mean_draw(spaces, reinforce)
    for step in range(20):
        batch = [Sample(each, 3 * step + k) for k, each in enumerate(spaces)]
        for _ in range(reinforce.passes):
            lessons = [lesson for lesson in reinforce.lessons(batch) if len(lesson.values)]
            optimizer.zero_grad()
            reinforce.loss(lessons).backward()
            optimizer.step()
    assert mean_draw(spaces, reinforce) < before - 0.03
