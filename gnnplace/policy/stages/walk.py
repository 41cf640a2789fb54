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

from gnnplace.graph.jit import kernel
from gnnplace.policy.stages.line import Line

FloatArray = NDArray[np.float64]
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
        line, k = self.line, self.segment
        made = np.empty((*self.load.shape, CANDIDATE_FEATURES), np.float32)
        wanted = self.wanted_devices, self.wanted_chunks
        so_far = self.load, self.chunks, self.last_chunk, self.last_length
        last = self.current, self.previous, self.length, self.previous_length
        here = line.work[k], float(line.crossing[k]), line.pace, line.speed, len(line.share)
        _candidates(*wanted, *so_far, *last, self.begun, self.used, self.done, *here, made)
        return made

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


@kernel
def _candidates(
    wanted_devices: SingleArray,
    wanted_chunks: SingleArray,
    load: SingleArray,
    chunks: SingleArray,
    last_chunk: SingleArray,
    last_length: SingleArray,
    current: IntArray,
    previous: IntArray,
    length: SingleArray,
    previous_length: SingleArray,
    begun: SingleArray,
    used: SingleArray,
    done: float,
    work: SingleArray,
    crossing: float,
    pace: FloatArray,
    speed: SingleArray,
    segments: int,
    made: SingleArray,
) -> None:
    """``Walk.candidates`` into ``made``; arguments as ``Walk`` and ``Line`` have them."""
    num_devices = load.shape[1]
    for b in range(len(load)):
        devices, due = wanted_devices[b], wanted_chunks[b]
        oldest, most = -1.0, 0.0
        for d in range(num_devices):
            most = max(most, chunks[b, d])
            if chunks[b, d] > 0:
                oldest = max(oldest, begun[b] - last_chunk[b, d])
        for d in range(num_devices):
            here, visited = current[b] == d, chunks[b, d] > 0
            age = begun[b] - last_chunk[b, d] if last_chunk[b, d] >= 0 else 0.0
            sent = 0.0
            if current[b] >= 0 and not here:
                sent = np.log1p(10 * pace[current[b], d] * crossing)
            row = made[b, d]
            row[0] = here  # has the segment before
            row[1] = visited  # has a segment
            row[2] = load[b, d] * (devices / num_devices)  # load
            row[3] = row[2] - done  # load above what is done
            row[4] = chunks[b, d] / max(due / devices, 1.0)  # chunks of those that are due
            row[5] = sent  # seconds of sending there
            row[6] = age / devices  # chunks since its last
            row[7] = visited and age == devices  # next in a cycle
            row[8] = visited and age == oldest  # longest without
            row[9] = previous[b] == d  # had the chunk before
            row[10] = last_length[b, d] * num_devices  # length of its last chunk
            row[11] = length[b] * due if here else 0.0  # length of the chunk if it goes on
            row[12] = 0.0 if here else length[b] * due  # length of the chunk that ends
            row[13] = speed[d]  # speed
            row[14] = (due - begun[b]) / due - (1.0 - done)  # chunks left above work left
            row[15] = (devices - used[b]) / devices  # devices left
            row[16] = not visited and used[b] >= devices  # one more than wanted
            row[17] = work[d] * (segments / num_devices)  # seconds there
            row[18] = previous_length[b] * due  # length of the chunk before
            row[19] = chunks[b, d] - most  # chunks less than the most
            for f in range(len(row)):
                if not np.isfinite(row[f]):
                    row[f] = 0.0
