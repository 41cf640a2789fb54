"""Device maps of Hugging Face accelerate: made of a placement, and checked without devices.

`device_map` returns a map that does exactly what the placement says, or raises `UnsupportedError`.
`check_device_map` runs the model's own code on tensors that claim to be on a map's devices.
The package runs no placement on workers and never imports accelerate.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.device_maps.checking import check_device_map as check_device_map
    from gnnplace.run.device_maps.making import device_map as device_map

__getattr__, __dir__ = lazy_names(__name__)
