"""What a placement counts for where it is to use a number of devices: its seconds, and more.

Formulation. The number of devices that a placement really uses is 1 / sum of squares of their
shares of the work. Where that is below ``EVEN`` of the number asked for, seconds are multiplied by
one plus what is missing, and by one more for each device beyond that number. Without it the best
placement under a limit is often one device, which says nothing of how work is divided: a network
that learns from both learns neither. Whether dividing pays is another decision
(``policy.gnn.device_count``), which is judged by seconds alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.policy.gnn.rollouts import Episodes

IntArray = NDArray[np.int32]
EVEN = 0.75  # 3 : 1 on two devices is 0.8 of them


def unevenness(episodes: Episodes, unit_device: IntArray, limit: int) -> float:
    """What seconds are multiplied by. ``unit_device``: [U]"""
    work = np.bincount(unit_device, episodes.walk.unit_work)
    used = float(work.sum() ** 2 / max(float((work**2).sum()), 1e-300))
    beyond = int(np.count_nonzero(np.bincount(unit_device))) - limit
    return 1.0 + max(0.0, EVEN - used / limit) + max(0, beyond)
