"""Walks along a line of segments that give each a device, many walks at a time.

At each segment every device is a candidate, described by what the walk has done so far: how much
it has, when it had its last run of segments (a chunk), what a chunk that begins there would cost.
Devices that are alike so far have equal features, so that a network cannot tell them apart.
A walk has a style to keep to: so many devices, so many chunks.
Complexity: O(B S D) for B walks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnplace.policy.stages.line import Line

SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
CANDIDATE_FEATURES, STYLE_FEATURES = 20, 4
NOBODY = -1


class Style(NamedTuple):
    """What a walk keeps to.

    Attributes:
        devices: how many it uses.
        chunks: how many runs of segments there are.
    """

    devices: int
    chunks: int


def style_of(device: IntArray) -> Style:
    """The style of devices in a line. [S]"""
    return Style(len(np.unique(device)), 1 + int((np.diff(device) != 0).sum()))


def style_features(style: Style, num_devices: int) -> SingleArray:
    """A style as a network sees it. [STYLE_FEATURES]"""
    devices, chunks = style
    told = (np.log(devices), devices / num_devices, np.log(chunks / devices), np.log(chunks))
    return np.array(told, dtype=np.float32)


class Walk:
    """B walks along one line, all at the same segment.

    Args:
        line: the line.
        styles: the style of each walk.
    """

    def __init__(self, line: Line, styles: list[Style]) -> None:
        count, num_devices = len(styles), len(line.speed)
        self.line, self.segment = line, 0
        self.wanted_devices = np.array([style.devices for style in styles], dtype=np.float32)
        self.wanted_chunks = np.array([style.chunks for style in styles], dtype=np.float32)
        self.load = np.zeros((count, num_devices), np.float32)
        self.chunks = np.zeros((count, num_devices), np.float32)
        self.last_chunk = np.full((count, num_devices), -1.0, np.float32)
        self.last_length = np.zeros((count, num_devices), np.float32)
        self.current, self.previous = (np.full(count, NOBODY, np.int32) for _ in range(2))
        self.length, self.previous_length = (np.zeros(count, np.float32) for _ in range(2))
        self.begun, self.used = (np.zeros(count, np.float32) for _ in range(2))
        self.done = 0.0

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Whether each device may have the next segment. [D]"""
        return np.isfinite(self.line.work[self.segment])

    def candidates(self) -> SingleArray:
        """What each device would be for the next segment. [B, D, CANDIDATE_FEATURES]"""
        shape, line = self.load.shape, self.line
        devices, chunks = self.wanted_devices[:, None], self.wanted_chunks[:, None]
        visited = self.chunks > 0
        here, before = self._is(self.current), self._is(self.previous)
        age = np.where(self.last_chunk >= 0, self.begun[:, None] - self.last_chunk, 0.0)
        oldest = np.where(visited, age, -1.0)
        length = self.length[:, None] * chunks
        sent = line.pace[np.maximum(self.current, 0)] * line.crossing[self.segment]
        sent = np.where((self.current >= 0)[:, None] & ~here, np.log1p(10 * sent), 0.0)
        load = self.load * (devices / shape[1])
        columns = {
            "has the segment before": here,
            "has a segment": visited,
            "load": load,
            "load above what is done": load - self.done,
            "chunks of those that are due": self.chunks
            / np.maximum(self.wanted_chunks / self.wanted_devices, 1.0)[:, None],
            "seconds of sending there": sent,
            "chunks since its last": age / devices,
            "next in a cycle": (age == devices) & visited,
            "longest without": (oldest == oldest.max(axis=1, keepdims=True)) & visited,
            "had the chunk before": before,
            "length of its last chunk": self.last_length * shape[1],
            "length of the chunk if it goes on": np.where(here, length, 0.0),
            "length of the chunk that ends": np.where(here, 0.0, length),
            "speed": line.speed[None],
            "chunks left above work left": (chunks - self.begun[:, None]) / chunks
            - (1.0 - self.done),
            "devices left": (devices - self.used[:, None]) / devices,
            "one more than wanted": ~visited & (self.used[:, None] >= devices),
            "seconds there": line.work[self.segment][None] * (len(line.share) / shape[1]),
            "length of the chunk before": (self.previous_length * self.wanted_chunks)[:, None],
            "chunks less than the most": self.chunks - self.chunks.max(axis=1, keepdims=True),
        }
        made = [np.broadcast_to(values, shape) for values in columns.values()]
        stacked = np.stack(made, axis=-1).astype(np.float32)
        return np.where(np.isfinite(stacked), stacked, 0.0)

    def take(self, device: IntArray) -> None:
        """Gives the next segment of each walk to a device. [B]"""
        line, walk = self.line, np.arange(len(device))
        new = device != self.current
        ends = np.flatnonzero(new & (self.current >= 0))
        self.last_length[ends, self.current[ends]] = self.length[ends]
        self.previous_length = np.where(new, self.length, self.previous_length)
        self.length = np.where(new, 0.0, self.length) + line.share[self.segment]
        self.used += new & (self.chunks[walk, device] == 0)
        self.chunks[walk, device] += new
        self.begun += new
        self.last_chunk[walk, device] = self.begun
        self.previous = np.where(new, self.current, self.previous).astype(np.int32)
        self.current = device.astype(np.int32)
        self.load[walk, device] += line.work[self.segment][device]
        self.done += float(line.share[self.segment])
        self.segment += 1

    def _is(self, device: IntArray) -> NDArray[np.bool_]:
        """Whether each device is that one of the walk. [B, D]"""
        return np.asarray(device[:, None] == np.arange(self.load.shape[1]))
