"""Seconds of an op on a GPU besides its kernel: gaps between kernels, and waiting for the host.

Eager PyTorch launches kernels from the host. The host runs ahead while the GPU is busy; otherwise
the GPU waits for it. The host can be at most QUEUE launches ahead (CUDA's launch queue; the next
launch blocks), and starts a step with none. With h_i the host's time for op i, and k_i its kernel
with the gap after it,

    issued_i = max(issued_{i-1}, done_{i-QUEUE}) + h_i
    done_i   = max(done_{i-1}, issued_i) + k_i

so that long kernels early in a step make up for short ones later. The waiting time of a layer in
one phase is divided over its ops in proportion to the host's time for them, so that equal ops of a
layer take equal times. Both lines are running maxima over blocks of QUEUE ops: O(n).

`Floor` has the constants; they differ for CUDA graphs (zero) and compiled models (gaps). Those of
eager mode come from measurements of single ops and layers, and none is fitted to a step:

* forward: from an event on an idle GPU to the end of a tiny kernel, the median of 75 ops on five
  hosts is 32 us (NeuSight's kernels), with 26 to 54 us from the fastest tenth to the slowest;
* view: 14 us between two events (NeuSight's graphs of models), most of it due to the events;
* backward: for layers so small that splitting them saves no time, an op's backward pass takes about
  0.7 of its forward pass (Sailor's OPT-350M, tensor parallel 4 to 8, on A100, V100 and GH200).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray


@dataclass(frozen=True)
class Floor:
    """Seconds beside kernels.

    Attributes:
        gap: What the GPU takes between a kernel and the next.
        view: What the host takes for an op without a kernel.
        forward: What the host takes for an op of the forward pass, in Python.
        backward: What the host takes for an op of the backward pass, in C++.
    """

    gap: float = 1e-6
    view: float = 5e-6
    forward: float = 32e-6
    backward: float = 22e-6


EAGER = Floor()
COMPILED = Floor(view=0.0, forward=0.0, backward=0.0)
NO_FLOOR = Floor(0.0, 0.0, 0.0, 0.0)
QUEUE = 1024  # launches that wait at most


def with_floor(
    kernel: FloatArray,
    view: BoolArray,
    backward: BoolArray,
    layer: NDArray[np.intp],
    floor: Floor = EAGER,
) -> FloatArray:
    """Return the seconds of ops in a step, with what launches and the host add. [ops]

    Args:
        kernel: Seconds of each op's kernels; of a view 0. [ops]
        view: Whether it launches nothing. [ops]
        backward: Whether the backward pass runs it. [ops]
        layer: Layer and phase of each op, numbered from 0. [ops]
        floor: What launches and the host add.
    """
    if not len(kernel):
        return kernel
    busy = np.where(view, 0.0, kernel + floor.gap)
    host = np.where(view, floor.view, np.where(backward, floor.backward, floor.forward))
    # Up to rounding.
    waited = np.maximum(np.diff(_done(busy, host), prepend=0.0) - busy, 0.0)
    count = int(layer.max()) + 1
    of_layer = np.bincount(layer, host, count)[layer]
    share = np.divide(host, of_layer, out=np.zeros_like(host), where=of_layer > 0)
    return np.asarray(busy + np.bincount(layer, waited, count)[layer] * share)


def _done(busy: FloatArray, host: FloatArray) -> FloatArray:
    """Return when each op is done, on a host that launches in order. [ops]"""
    finish = np.zeros(len(busy) + QUEUE)  # the first QUEUE are of no op
    issued = 0.0
    for start in range(0, len(busy), QUEUE):
        window = slice(start, min(start + QUEUE, len(busy)))
        ready = _running(np.maximum(finish[window], issued), host[window])
        issued = float(ready[-1])
        free = np.maximum(ready, finish[QUEUE + start - 1])
        finish[QUEUE + window.start : QUEUE + window.stop] = _running(
            free, busy[window]
        )
    return finish[QUEUE:]


def _running(ready: FloatArray, takes: FloatArray) -> FloatArray:
    """Return when each of several ends that run in order, none before it is ready."""
    ends = np.cumsum(takes)
    return np.asarray(ends + np.maximum.accumulate(ready - (ends - takes)))
