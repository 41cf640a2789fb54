"""What an op takes on a GPU beside its kernel: the gap to the next, the host that launches.

Eager PyTorch launches kernels from the host, which runs ahead while the GPU is busy and is waited
for where it is not. Over a layer's ops of one phase (the host is never much further ahead),

    time = max(sum of kernels and gaps, sum of what the host takes for each op)

and where the host binds, its lead is spread over the layer's ops by what the host takes for them.
`Floor` holds the constants; another host or launcher (CUDA graphs: zero) is another `Floor`. Eager
ones are what hosts took in measurements of single ops and layers, and are fitted to no step:

* forward: from an event on an idle GPU to the end of a tiny kernel it takes 32 us in the median of
  75 ops on five hosts (NeuSight's kernels), 26 to 54 us from the fastest tenth to the slowest;
* view: 14 us between two events (NeuSight's graphs of models), most of them the events' own;
* backward: where small layers do not get faster with a smaller share of them, backward takes about
  0.7 of forward for an op (Sailor's OPT-350M, tensor parallel 4 to 8, on A100, V100 and GH200).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.costs.rows import Floats


@dataclass(frozen=True)
class Floor:
    """Seconds beside kernels.

    Attributes:
        gap: Of the GPU between a kernel and the next.
        view: Of the host for an op without a kernel.
        forward: Of the host for an op of the forward pass, in Python.
        backward: Of the host for an op of the backward pass, in C++.
        layer: Of the host for a layer and phase, beside its ops.
    """

    gap: float = 1e-6
    view: float = 5e-6
    forward: float = 32e-6
    backward: float = 22e-6
    layer: float = 0.0


EAGER = Floor()
NOTHING = Floor(0.0, 0.0, 0.0, 0.0, 0.0)


def with_floor(
    kernel: Floats,
    view: NDArray[np.bool_],
    backward: NDArray[np.bool_],
    layer: NDArray[np.intp],
    floor: Floor = EAGER,
) -> Floats:
    """Seconds of ops as a step feels them.

    Args:
        kernel: Seconds of each op's kernels; of a view 0. [ops]
        view: Whether it launches nothing. [ops]
        backward: Whether the backward pass runs it. [ops]
        layer: Layer and phase of each op, numbered from 0. [ops]
        floor: The constants.
    """
    if not len(kernel):
        return kernel
    busy = np.where(view, 0.0, kernel + floor.gap)
    host = np.where(view, floor.view, np.where(backward, floor.backward, floor.forward))
    count = int(layer.max()) + 1
    of_layer = np.bincount(layer, host, count)
    late = np.maximum(floor.layer + of_layer - np.bincount(layer, busy, count), 0.0)
    share = np.divide(host, of_layer[layer], out=np.zeros_like(host), where=of_layer[layer] > 0)
    return np.asarray(busy + late[layer] * share)
