"""Whether torch has a kernel for CUDA behind an op, also where torch was built without CUDA.

A build with CUDA is asked itself. Any other is not registered for CUDA at all; there the list that
torch's own dispatcher is generated from is read (`native_functions.yaml`, which the wheel brings
along in `torchgen`): an overload has a kernel if it names CUDA or a key that stands for all
devices, if another one that does is its structured twin, or if it is composed of other ops.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from torch._ops import OpOverload

CUDA = "CUDA"
EVERYWHERE = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
"""Dispatch keys whose kernels run on any device."""
HOST = ("mkldnn_", "_mkldnn_")
"""Ops of these names say that they run on any device and refuse all but a CPU."""
LIST = "packaged/ATen/native/native_functions.yaml"


def has_cuda_kernel(op: OpOverload) -> bool:
    """Whether an ATen overload, or one of the user's own, can run on a GPU."""
    name = op.name()
    if torch.version.cuda is None and op.namespace == "aten":
        known = _listed().get(name.removeprefix("aten::"))
        if known is not None:
            return known
    keys = (CUDA, *EVERYWHERE)
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


@cache
def _listed() -> dict[str, bool]:
    """Whether an overload has a kernel by torch's own list, by its name."""
    entries = {_name(entry): entry for entry in _entries()}

    def found(name: str) -> bool:
        twin = entries[name].get("structured_delegate")
        if twin is not None:
            return found(twin)
        if "ufunc_inner_loop" in entries[name]:
            return True  # written once, generated for the CPU and for CUDA
        keys = _keys(entries[name])
        return CUDA in keys or (not keys.isdisjoint(EVERYWHERE) and not name.startswith(HOST))

    return {name: found(name) for name in entries}


def _keys(entry: dict[str, Any]) -> set[str]:
    """Dispatch keys of an entry; one without any is composed of other ops."""
    table = entry.get("dispatch")
    if not table:
        return {EVERYWHERE[0]}
    return {key.strip() for keys in table for key in keys.split(",")}


def _name(entry: dict[str, Any]) -> str:
    return str(entry["func"]).partition("(")[0]


def _entries() -> list[dict[str, Any]]:
    """The list; empty of a torch that comes without it."""
    spec = find_spec("torchgen")
    if spec is None or not spec.submodule_search_locations:
        return []
    text = (Path(spec.submodule_search_locations[0]) / LIST).read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return entries
