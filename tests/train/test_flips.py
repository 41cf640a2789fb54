from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.train import Flips
from gnnplace.train.flips import alike_regret
from tests.train.test_algorithms import SIZES, sample

torch.set_num_threads(1)


def module_of(**options):
    torch.manual_seed(0)
    return Flips(flips=20, learning_rate=3e-3, **options, **SIZES)


def test_lessons_have_a_regret_for_every_device_of_every_flipped_unit():
    for lesson in module_of().lessons([sample()]):
        assert len(lesson.values) <= 20
        finite = np.isfinite(lesson.values)
        assert (finite.sum(axis=1) >= 2).all()
        assert (np.nanmin(lesson.values, axis=1) == 0.0).all()
        assert np.nanmax(lesson.values) <= 0.1 + 1e-6


def test_a_choice_that_does_not_matter_has_no_weight():
    module = module_of()
    scores = torch.tensor([[5.0, 0.0, 1.0]], requires_grad=True)
    module.decision_loss(scores, torch.tensor([[0.0, 0.0, 0.0]])).sum().backward()
    assert scores.grad is not None
    assert float(scores.grad.abs().max()) == 0.0


def test_the_loss_falls_as_the_dear_device_falls_and_grows_with_the_stake():
    module = module_of()
    dear = [
        float(module.decision_loss(torch.tensor([[0.0, x]]), torch.tensor([[0.0, 0.05]])))
        for x in (1.0, 0.0, -1.0)
    ]
    assert dear[0] > dear[1] > dear[2] > 0
    small = module.decision_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 0.025]]))
    assert float(small) == pytest.approx(dear[0] / 2)


def test_devices_that_look_alike_share_the_least_regret():
    regret = np.array([[0.0, 0.3, 0.1, np.nan], [0.2, 0.1, np.nan, 0.0]])
    same = np.array([[0, 0, 2, -1], [0, 1, -1, 0]])
    wanted = np.array([[0.0, 0.0, 0.1, np.nan], [0.0, 0.1, np.nan, 0.0]])
    np.testing.assert_array_equal(alike_regret(regret, same), wanted)


def test_steps_on_one_lesson_lower_its_loss():
    module = module_of()
    lessons = [lesson for lesson in module.lessons([sample()]) if len(lesson.values)]
    optimizer = torch.optim.Adam(module.policy.parameters(), 3e-3)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = module.loss(lessons)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
