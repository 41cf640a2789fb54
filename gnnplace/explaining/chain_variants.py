"""A captured model on another host or other links, with which explanations separate causes.

It is for captured models what `framework_variants` is for models priced by their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnnplace.costs import EAGER, NO_FLOOR, Floor
from gnnplace.plans import Chain, MeshFabric, ModelCosts
from gnnplace.problem import find_kind


@dataclass(eq=False)
class ScaledFabric(MeshFabric):
    """A fabric whose exchanges take a multiple of their time.

    Attributes:
        exchanges: The multiple of collectives, such as 0 for none.
        messages: The multiple of messages between stages.
    """

    exchanges: float = 1.0
    messages: float = 1.0

    def collective(
        self, op: str, size: float, members: Sequence[int], alike: int = 1
    ) -> float:
        """Return the seconds of a collective; arguments as of `MeshFabric.collective`."""
        return self.exchanges * super().collective(op, size, members, alike)

    def sends(self, size: float, pairs: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of messages; arguments as of `MeshFabric.sends`."""
        return self.messages * super().sends(size, pairs)


def scale_floor(chain: Chain, fabric: MeshFabric, factor: float) -> Floor | None:
    """Return what launches add if the host takes so many times as long for each.

    Args:
        chain: The captured model.
        fabric: Its devices. CPUs wait for no launches.
        factor: The multiple of the host's seconds; at 0 nothing is left beside kernels.
    """
    source = chain.source
    assert isinstance(source, ModelCosts)
    if factor == 1.0 or all(find_kind(kind) == "cpu" for kind in fabric.cluster.kinds):
        return source.parts.floor
    if factor == 0.0:
        return NO_FLOOR
    floor = source.parts.floor or EAGER
    return replace(
        floor,
        view=factor * floor.view,
        forward=factor * floor.forward,
        backward=factor * floor.backward,
    )


def with_launches(chain: Chain, fabric: MeshFabric, floor: Floor | None) -> Chain:
    """Return a captured model whose launches add other seconds, over another fabric.

    Args:
        chain: The model.
        fabric: What its shards exchange over.
        floor: What a launch adds; None: what eager PyTorch's do on each kind of device.
    """
    captured = chain.source
    assert isinstance(captured, ModelCosts)
    source = ModelCosts(
        layers=captured.layers,
        cuts=captured.cuts,
        fabric=fabric,
        batch=captured.batch,
        precision=captured.precision,
        optimizer=captured.optimizer,
    )
    source.parts.floor = floor
    source.parts.fullest = captured.parts.fullest
    source.parts.recordings = captured.parts.recordings  # a launch changes no kernel
    return replace(chain, source=source, _known={})


def without_launches(chain: Chain, fabric: MeshFabric) -> Chain:
    """Return a captured model whose kernels wait for no launches, as inside of CUDA graphs.

    Args:
        chain: The model.
        fabric: What its shards exchange over.
    """
    return with_launches(chain, fabric, NO_FLOOR)
