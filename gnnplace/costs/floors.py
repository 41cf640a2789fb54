"""Seconds of an op on a GPU besides its kernel: gaps between kernels, and waiting for the host.

Eager PyTorch launches kernels from the host. The host runs ahead while the GPU is busy; otherwise
the GPU waits for it. The host can be at most QUEUE launches ahead (the length of CUDA's launch
queue: the next launch blocks), and at the beginning of a step it is none ahead. With h_i the host's
seconds for op i, and k_i the seconds of its kernel and the gap after it,

    issued_i = max(issued_{i-1}, done_{i-QUEUE}) + h_i
    done_i   = max(done_{i-1}, issued_i) + k_i

Long kernels early in a step give the host a lead that short kernels later use up. Waiting time is
added up over the ops of one layer and phase, and divided among them in proportion to the host's
seconds for each, so that equal ops of a layer take equal times.

Complexity: O(n), since both lines are running maxima over blocks of QUEUE ops.

`Floor` has the constants. They are all zero with CUDA graphs; compiled models only have gaps. Those
of eager mode come from measurements of single ops and layers, and none is fitted to a step:

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
    """The seconds of an op that are not its kernel's.

    Attributes:
        gap: GPU seconds between a kernel and the next one.
        view: Host seconds for an op without a kernel.
        forward: Host seconds for an op of the forward pass, which Python launches.
        backward: Host seconds for an op of the backward pass, which C++ launches.
    """

    gap: float = 1e-6
    view: float = 5e-6
    forward: float = 32e-6
    backward: float = 22e-6


EAGER = Floor()
COMPILED = Floor(view=0.0, forward=0.0, backward=0.0)
NO_FLOOR = Floor(gap=0.0, view=0.0, forward=0.0, backward=0.0)  # CUDA graphs
QUEUE = 1024  # launches that the host can be ahead of the GPU


def with_floor(
    kernel: FloatArray,
    view: BoolArray,
    backward: BoolArray,
    layer: NDArray[np.intp],
    floor: Floor = EAGER,
) -> FloatArray:
    """Return the seconds of each op in a step, with gaps and waiting for the host. [ops]

    Args:
        kernel: Seconds of each op's kernels; 0 for a view. [ops]
        view: Whether an op launches nothing. [ops]
        backward: Whether the backward pass runs an op. [ops]
        layer: A number from 0 for each op; ops of one layer and phase share it. [ops]
        floor: Constants of gaps and of the host.
    """
    if not len(kernel):
        return kernel
    busy = np.where(view, 0.0, kernel + floor.gap)
    host = np.where(view, floor.view, np.where(backward, floor.backward, floor.forward))
    # An op's seconds beyond its kernel are waiting. Rounding can make them slightly negative.
    seconds = np.diff(_compute_finish_times(busy, host), prepend=0.0)
    waited = np.maximum(seconds - busy, 0.0)

    # Divide the waiting of a layer among its ops in proportion to their host seconds.
    num_layers = int(layer.max()) + 1
    layer_host = np.bincount(layer, host, num_layers)[layer]
    host_share = np.zeros_like(host)
    np.divide(host, layer_host, out=host_share, where=layer_host > 0)
    layer_waited = np.bincount(layer, waited, num_layers)[layer]
    return np.asarray(busy + layer_waited * host_share)


def _compute_finish_times(busy: FloatArray, host: FloatArray) -> FloatArray:
    """Return when each op is done: `done` in the formulas of the module's text. [ops]

    Args:
        busy: GPU seconds of each op, k. [ops]
        host: Host seconds of each op, h. [ops]
    """
    # finish[QUEUE + i] is op i's; the first QUEUE entries say that nothing is queued at the start.
    finish = np.zeros(len(busy) + QUEUE)
    issued = 0.0
    for start in range(0, len(busy), QUEUE):
        window = slice(start, min(start + QUEUE, len(busy)))
        # finish[window] is of the ops that are QUEUE launches earlier.
        ready = _run_in_order(np.maximum(finish[window], issued), host[window])
        issued = float(ready[-1])
        free = np.maximum(ready, finish[QUEUE + start - 1])
        finish[QUEUE + window.start : QUEUE + window.stop] = _run_in_order(
            free, busy[window]
        )
    return finish[QUEUE:]


def _run_in_order(ready: FloatArray, seconds: FloatArray) -> FloatArray:
    """Return when each task of a sequence ends; none begins before it is ready. [tasks]"""
    ends = np.cumsum(seconds)
    return np.asarray(ends + np.maximum.accumulate(ready - (ends - seconds)))
