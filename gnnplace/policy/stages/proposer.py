"""``Proposer``: devices for the segments of a line by a trained ``StageNet``, in numpy.

The encoder runs once a problem, the decoder once a segment for all walks together: some 30 ms for
48 walks of 96 segments on eight devices. The first walk takes the best device at each segment, the
others draw one, by scores over a temperature (Gumbel noise).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from gnnplace.errors import FormatError
from gnnplace.policy.stages.line import Line
from gnnplace.policy.stages.walk import Style, Walk, style_features

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
CHECKPOINT = Path(__file__).parents[1] / "checkpoint" / "stages.safetensors"
TEMPERATURE = 0.5
ROUNDING = 1e-5  # of ``nn.LayerNorm``


class Proposer:
    """Walks along lines.

    Args:
        arrays: the parameters of a ``StageNet`` by their names.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        names = (name.split(".")[1] for name in arrays if name.startswith("rounds."))
        self.rounds = len(set(names))

    def states(self, line: Line) -> SingleArray:
        """The encoder's states of segments. [S, H]"""
        whole = np.broadcast_to(line.whole, (len(line.segments), len(line.whole)))
        state = _relu(self._linear("enter", np.concatenate([line.segments, whole], axis=1)))
        source, target = line.pairs
        for k in range(self.rounds):
            own = f"rounds.{k}."
            onward = _relu(self._linear(own + "onward", _beside(state[source], line.traffic)))
            back = _relu(self._linear(own + "back", _beside(state[target], line.traffic)))
            received, returned = np.zeros_like(state), np.zeros_like(state)
            np.add.at(received, target, onward)
            np.add.at(returned, source, back)
            seen = np.concatenate([state, received, returned], axis=1)
            seen = self._linear(own + "second", _relu(self._linear(own + "first", seen)))
            state = self._norm(own + "norm", state + seen)
        return state

    def propose(self, line: Line, styles: list[Style], rng: np.random.Generator) -> IntArray:
        """A walk in each of the styles: devices of segments. [B, S]"""
        state = self.states(line)
        context = {style: self._context(state, line, style) for style in set(styles)}
        contexts = np.stack([context[style] for style in styles], axis=1)
        walk, chosen = Walk(line, styles), np.zeros((len(styles), len(state)), np.int32)
        drawn = (np.arange(len(styles)) > 0)[:, None]
        for k, told in enumerate(contexts):
            score = self._scores(told, walk.candidates()) / TEMPERATURE
            score += drawn * rng.gumbel(size=score.shape)
            chosen[:, k] = np.where(walk.allowed, score, -np.inf).argmax(axis=1)
            walk.take(chosen[:, k])
        return chosen

    def _scores(self, told: SingleArray, candidates: SingleArray) -> FloatArray:
        """Scores of devices by what is told of each walk; in rows, one product for all. [B, D]"""
        shape = candidates.shape[:2]
        seen = candidates.reshape(-1, candidates.shape[2]) @ self.arrays["candidate.weight"].T
        seen += np.repeat(told, shape[1], axis=0)
        np.maximum(seen, 0.0, out=seen)
        seen = self._linear("second", seen)
        np.maximum(seen, 0.0, out=seen)
        return (seen @ self.arrays["last.weight"][0]).reshape(shape).astype(np.float64)

    def _context(self, state: SingleArray, line: Line, style: Style) -> SingleArray:
        """What the decoder takes of each segment in walks of a style. [S, H]"""
        style_told = style_features(style, len(line.speed))
        told = np.concatenate([state.mean(axis=0), line.whole, style_told])
        return self._linear(
            "context", _beside(state, np.broadcast_to(told, (len(state), len(told))))
        )

    def _linear(self, name: str, values: SingleArray) -> SingleArray:
        made = values @ self.arrays[f"{name}.weight"].T + self.arrays[f"{name}.bias"]
        return np.asarray(made, dtype=np.float32)

    def _norm(self, name: str, values: SingleArray) -> SingleArray:
        mean, spread = values.mean(axis=1, keepdims=True), values.var(axis=1, keepdims=True)
        even = (values - mean) / np.sqrt(spread + ROUNDING)
        return np.asarray(even * self.arrays[f"{name}.weight"] + self.arrays[f"{name}.bias"])


@lru_cache(maxsize=2)
def load_proposer(path: str | Path = CHECKPOINT) -> Proposer:
    """The network saved at ``path``, by default the one that comes with the package.

    Raises:
        FormatError: there is no such file, or it is something else.
    """
    try:
        return Proposer(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _relu(values: SingleArray) -> SingleArray:
    return np.maximum(values, 0.0)


def _beside(one: SingleArray, other: SingleArray) -> SingleArray:
    return np.concatenate([one, other], axis=1)
