from __future__ import annotations

import numpy as np
import torch

from gnnplace.placers import SearchSpace
from gnnplace.train.aim_choice import AimChoice
from gnnplace.train.data.random_families import random_problem
from gnnplace.train.data_module import ProblemSample


def module():
    torch.manual_seed(0)
    return AimChoice(tried=2)


def sample(seed):
    problem = random_problem("layered", seed, ops=(30, 40), devices=(4, 4), microbatches=(1,))
    return ProblemSample(SearchSpace(problem), seed)


def test_aims_are_worse_than_the_best_by_their_decodes():
    learner, one = module(), sample(1)
    _, aims, worse = learner._decoded(one)
    rollouts = learner.rollouts(one)
    scores = np.array([min(d.score for d in rollouts.widened(aim)) for aim in rollouts.aims])
    assert len(aims) == len(scores)
    np.testing.assert_allclose(worse, np.log(scores / scores.min()), rtol=1e-5, atol=1e-6)


def test_only_the_aim_net_learns_and_it_does():
    learner, batch = module(), [sample(seed) for seed in range(4)]
    learner._standardise(torch.stack([learner._decoded(s)[0] for s in batch]))
    learner.trainer = type("Trainer", (), {"global_step": 1})()
    names = {name for name, p in learner.policy.named_parameters() if p.requires_grad}
    assert all(name.startswith("aims.") for name in names)
    optimizer = torch.optim.Adam(learner.policy.aims.parameters(), 1e-2)
    decoded, losses = [learner._decoded(s) for s in batch], []
    for _ in range(30):
        loss = learner.loss(decoded)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_validation_is_what_the_untried_aims_would_have_gained():
    learner, one = module(), sample(2)
    learner.validation_step([one], 0)
    _, _, worse = learner._decoded(one)
    assert learner.ratios == [float(worse[:2].min())]  # untrained: in the order of the list
