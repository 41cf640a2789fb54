"""The cluster room: devices, links, presets and their files."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.problem.cluster.cluster import Cluster as Cluster
    from gnnplace.problem.cluster.cluster import Device as Device
    from gnnplace.problem.cluster.cluster import Link as Link
    from gnnplace.problem.cluster.cluster import link_all_pairs as link_all_pairs
    from gnnplace.problem.cluster.cluster import (
        list_device_counts as list_device_counts,
    )
    from gnnplace.problem.cluster.presets import load_cluster as load_cluster
    from gnnplace.problem.cluster.presets import make_preset as make_preset
    from gnnplace.problem.cluster.presets import preset_names as preset_names
    from gnnplace.problem.cluster.presets import read_cluster as read_cluster
    from gnnplace.problem.cluster.presets import write_cluster as write_cluster

__getattr__, __dir__ = lazy_names(__name__)
