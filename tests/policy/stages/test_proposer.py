from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.errors import FormatError
from gnnplace.policy.stages.line import line_of
from gnnplace.policy.stages.network import StageNet
from gnnplace.policy.stages.proposer import Proposer, load_proposer
from gnnplace.policy.stages.walk import Style, style_of
from gnnplace.train.stages import collated, walked
from tests.policy.stages.problems import chain, grouped


def untrained(rounds: int = 3) -> tuple[StageNet, Proposer]:
    torch.manual_seed(0)
    network = StageNet(16, rounds)
    return network, Proposer({name: p.numpy() for name, p in network.state_dict().items()})


@pytest.mark.parametrize("rounds", [0, 2])
def test_numpy_chooses_what_torch_scores_highest(rounds):
    line = line_of(*grouped(chain()))
    network, proposer = untrained(rounds)
    chosen = proposer.propose(line, [Style(3, 6)], np.random.default_rng(0))[0]
    lines, candidates, _, allowed = collated([walked(line, chosen, Style(3, 6))])
    with torch.no_grad():
        scores = network(lines, candidates).masked_fill(~allowed, -np.inf)
    taken = scores.gather(1, torch.from_numpy(chosen).long()[:, None])[:, 0]
    assert taken.numpy() == pytest.approx(scores.max(dim=1).values.numpy(), abs=1e-5)


def test_the_same_seed_draws_the_same_and_walks_differ():
    line = line_of(*grouped(chain()))
    proposer = untrained()[1]
    styles = [Style(3, 6)] * 8
    one, other = (proposer.propose(line, styles, np.random.default_rng(3)) for _ in range(2))
    assert (one == other).all()
    assert len({tuple(row) for row in one.tolist()}) > 1


def test_the_shipped_network_keeps_to_its_style_better_than_an_untrained_one():
    line = line_of(*grouped(chain(num_layers=40, num_devices=4), 40))
    styles = [Style(4, 8)] * 16

    def error(proposer):
        made = proposer.propose(line, styles, np.random.default_rng(0))
        return np.mean([abs(style_of(row).chunks - 8) for row in made])

    assert error(load_proposer()) < 4 < error(untrained()[1])


def test_a_file_that_is_none_is_one_line(tmp_path):
    (tmp_path / "x.safetensors").write_text("nothing")
    with pytest.raises(FormatError, match="cannot be read"):
        load_proposer(tmp_path / "x.safetensors")
