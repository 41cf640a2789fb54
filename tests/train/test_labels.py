from __future__ import annotations

import numpy as np
import torch

from gnnplace.data.random_families import random_problem
from gnnplace.placers import SearchSpace
from gnnplace.policy import Rollouts
from gnnplace.policy.network.model import PlacementPolicy
from gnnplace.train.labels import build_labels, clean, make_label, read_labels

torch.set_num_threads(1)


def space_of(index):
    return SearchSpace(random_problem("inception", index, ops=(20, 40), microbatches=(1,)))


def policy():
    torch.manual_seed(0)
    return PlacementPolicy(hidden=8, layers=1, decoder_hidden=8).eval()


def test_labels_are_as_good_as_they_say_and_never_worse_than_the_policy():
    gains = []
    for index in range(4):
        space = space_of(index)
        label = make_label(space, index, policy())
        start = Rollouts(space, policy()).greedy()[0]
        assert label.aim == start.aim
        assert label.gain >= 0
        score = space.sequence(space.spread(label.unit_device))[0]
        assert score <= start.score * 1.2
        gains.append(label.gain)
    assert max(gains) > 0


def test_cleaning_undoes_what_does_not_matter():
    space = space_of(1)
    units = space.problem.num_units
    start = np.zeros(units, np.int32)
    order = space.sequence(space.spread(start))[1]
    other = start.copy()
    other[0] = 1
    assert clean(space, other, start, order, np.inf).tolist() == start.tolist()
    assert clean(space, other, start, order, 0.0).tolist() == other.tolist()


def test_labels_are_read_as_they_were_made(tmp_path):
    build_labels(tmp_path, 3, space_of, policy())
    labels = read_labels(tmp_path)
    assert sorted(labels) == [0, 1, 2]
    again = make_label(space_of(2), 2, policy())
    assert labels[2].aim == again.aim
    assert labels[2].gain == again.gain
    np.testing.assert_array_equal(labels[2].unit_device, again.unit_device)
