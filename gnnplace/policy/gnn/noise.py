"""Gumbel noise for draws: a decision's own, or one that the units of a cluster share.

Noise on the scores makes the highest one a draw from the softmax. Where each decision has its own,
hundreds of decisions never all go the same way by chance; shared noise tries whole clusters on a
device: of a random level, ``SHARED`` times a cluster's noise and ``OWN`` times the unit's own. Such
draws are no samples of the network's distribution, but any placement may be a label.
"""

from __future__ import annotations

import numpy as np

from gnnplace.arrays import IntArray, SingleArray

SHARED, OWN = (0.5, 4.0), 0.3  # temperatures; the first is drawn between its bounds


def gumbel_noise(rng: np.random.Generator, count: int, units: int, devices: int) -> SingleArray:
    """Noise of each decision's own. [count, units, devices]"""
    return rng.gumbel(size=(count, units, devices)).astype(np.float32)


def shared_noise(
    rng: np.random.Generator, count: int, clusters: IntArray, devices: int
) -> SingleArray:
    """Noise that is shared within clusters of a random level. [count, U, devices]

    Args:
        rng: where all is drawn from.
        count: number of draws.
        clusters: cluster of each unit at each level. [levels, U]
        devices: number of devices.
    """
    own = OWN * gumbel_noise(rng, count, clusters.shape[1], devices)
    for noise in own:
        of = clusters[int(rng.integers(len(clusters)))]
        of = of - of.min()
        temperature = np.exp(rng.uniform(*np.log(SHARED)))
        noise += (temperature * rng.gumbel(size=(int(of.max()) + 1, devices)))[of]
    return own
