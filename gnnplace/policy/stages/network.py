"""``StageNet``: a graph network over the segments of a line, and a decoder that walks it.

The encoder passes messages both ways along the pairs of segments that exchange tensors, three
rounds. The decoder scores each candidate device of the next segment from the segment's state, the
mean state, the style of the walk, and the candidate's features; nothing is added to its score.
This is for learning, in torch; ``proposer`` walks with the same arrays in numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnnplace.policy.stages.line import SEGMENT_FEATURES, WHOLE_FEATURES
from gnnplace.policy.stages.walk import CANDIDATE_FEATURES, STYLE_FEATURES


class Lines(NamedTuple):
    """Lines of a batch, one behind the other: S segments and E pairs of all P lines.

    Attributes:
        segments: [S, SEGMENT_FEATURES]
        whole: [P, WHOLE_FEATURES]
        pairs: segments of all lines, source and target. [2, E]
        traffic: [E, 1]
        line: line of each segment. [S]
        style: of the walk along the segment's line. [S, STYLE_FEATURES]
    """

    segments: Tensor
    whole: Tensor
    pairs: Tensor
    traffic: Tensor
    line: Tensor
    style: Tensor


class Round(nn.Module):
    """One round of messages, forwards and backwards along the pairs."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.onward = nn.Linear(hidden + 1, hidden)
        self.back = nn.Linear(hidden + 1, hidden)
        self.first = nn.Linear(3 * hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, state: Tensor, pairs: Tensor, traffic: Tensor) -> Tensor:
        """New states. [S, H]"""
        source, target = pairs
        onward = torch.relu(self.onward(torch.cat([state[source], traffic], dim=1)))
        back = torch.relu(self.back(torch.cat([state[target], traffic], dim=1)))
        received = torch.zeros_like(state).index_add(0, target, onward)
        returned = torch.zeros_like(state).index_add(0, source, back)
        seen = torch.relu(self.first(torch.cat([state, received, returned], dim=1)))
        return self.norm(state + self.second(seen))


class StageNet(nn.Module):
    """Encoder and decoder.

    Args:
        hidden: H, the size of all layers.
        rounds: of messages; 0 leaves the graph out.
    """

    def __init__(self, hidden: int = 64, rounds: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(SEGMENT_FEATURES + WHOLE_FEATURES, hidden)
        self.rounds = nn.ModuleList(Round(hidden) for _ in range(rounds))
        told = 2 * hidden + WHOLE_FEATURES + STYLE_FEATURES
        self.context = nn.Linear(told, hidden)
        self.candidate = nn.Linear(CANDIDATE_FEATURES, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1, bias=False)

    def contexts(self, lines: Lines) -> Tensor:
        """What the decoder takes of each segment. [S, H]"""
        whole = lines.whole[lines.line]
        state = torch.relu(self.enter(torch.cat([lines.segments, whole], dim=1)))
        for each in self.rounds:
            state = each(state, lines.pairs, lines.traffic)
        total = torch.zeros(len(lines.whole), state.shape[1]).index_add(0, lines.line, state)
        mean = total / torch.bincount(lines.line, minlength=len(total))[:, None]
        told = [state, mean[lines.line], whole, lines.style]
        return self.context(torch.cat(told, dim=1))

    def forward(self, lines: Lines, candidates: Tensor) -> Tensor:
        """Scores of devices. [S, D]

        Args:
            lines: a batch.
            candidates: what each device is for each segment. [S, D, CANDIDATE_FEATURES]
        """
        seen = torch.relu(self.contexts(lines)[:, None] + self.candidate(candidates))
        return self.last(torch.relu(self.second(seen)))[..., 0]
