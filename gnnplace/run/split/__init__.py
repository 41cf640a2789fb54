"""Runs the calls of a split model on one device's shards, moving tensors between layouts.

* `place_calls` pairs each call with the layouts that its rule and configuration imply
  (`PlacedCall`), and `run_part` runs one device's part of it.
* `move_shard` and `redistribute` move a tensor from one layout to another by collectives; autograd
  moves its gradient back. `Regathering` gathers again in the backward pass.
* `measure_figures` and `measure_machine` measure the devices and links of a mesh that is here.

Joint plans price and run their stages by it, and `shard` measures with it. It chooses no layout.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.split.measure import broadcast_from_first as broadcast_from_first
    from gnnplace.run.split.measure import measure_figures as measure_figures
    from gnnplace.run.split.move import Regathering as Regathering
    from gnnplace.run.split.move import dtensor_placements as dtensor_placements
    from gnnplace.run.split.move import flatten_mesh as flatten_mesh
    from gnnplace.run.split.move import move_shard as move_shard
    from gnnplace.run.split.move import redistribute as redistribute
    from gnnplace.run.split.move import set_mesh_group as set_mesh_group
    from gnnplace.run.split.move import unpack_saved as unpack_saved
    from gnnplace.run.split.runner import PlacedCall as PlacedCall
    from gnnplace.run.split.runner import place_calls as place_calls
    from gnnplace.run.split.runner import run_part as run_part

__getattr__, __dir__ = lazy_names(__name__)
