"""Differences on a GPU: the ops that have a kernel there, and the types of their results.

A torch with CUDA knows its kernels. Any other torch has none registered for CUDA; then the list
from which torch's own dispatcher is generated is read (`native_functions.yaml`, in the wheel's
`torchgen`). An overload has a kernel if it names CUDA or a key for all devices, if its structured
variant does, or if it is composed of other ops.

A program captured on a CPU says what its ops make on a CPU. Kernels for CUDA make the mean and the
inverse deviation of a half-precision input in float32 (`at::toAccumulateType`), and the backward
pass takes no others, so a message that carries them from one GPU to another must be of that type.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml

from gnnplace.torch_names import OpOverload, dispatch_has_kernel_for_dispatch_key
from gnnplace.tracing.program.program import Program, ValueInfo

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
aten = torch.ops.aten
STATISTICS = {
    aten.native_layer_norm.default: (1, 2),
    aten._fused_rms_norm.default: (1,),
    aten.native_batch_norm.default: (1, 2),
    aten._native_batch_norm_legit.default: (1, 2),
    aten._native_batch_norm_legit.no_stats: (1, 2),
    aten._native_batch_norm_legit_functional.default: (1, 2),
}
"""Ops and which of their results are statistics."""
HALVES = (torch.bfloat16, torch.float16)


def has_cuda_kernel(op: OpOverload) -> bool:
    """Return whether an ATen overload, or one of the user's own, can run on a GPU."""
    name = op.name()
    if op.namespace == "aten":
        plain_name = name.removeprefix("aten::")
        if plain_name.startswith(HOST):
            return False
        if torch.version.cuda is None:
            listed = _list_cuda_kernels().get(plain_name)
        else:
            listed = None
        if listed is not None:
            return listed
    keys = (CUDA, *EVERYWHERE)
    return any(dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


@cache
def _list_cuda_kernels() -> dict[str, bool]:
    """Return, for every overload of torch's own list, whether it has a kernel for CUDA."""
    entries = {str(entry["func"]).partition("(")[0]: entry for entry in _entries()}

    def has_kernel(name: str) -> bool:
        twin = entries[name].get("structured_delegate")
        if twin is not None:
            return has_kernel(twin)
        if "ufunc_inner_loop" in entries[name]:
            return True  # written once, generated for the CPU and for CUDA
        keys = _keys(entries[name])
        return CUDA in keys or not keys.isdisjoint(EVERYWHERE)

    return {name: has_kernel(name) for name in entries}


def _keys(entry: dict[str, Any]) -> set[str]:
    """Return the dispatch keys of an entry; one without any is composed of other ops."""
    table = entry.get("dispatch")
    if not table:
        return {EVERYWHERE[0]}
    return {key.strip() for keys in table for key in keys.split(",")}


def _entries() -> list[dict[str, Any]]:
    """Return torch's list of overloads; empty of a torch that comes without it."""
    spec = find_spec("torchgen")
    if spec is None or not spec.submodule_search_locations:
        return []
    text = (Path(spec.submodule_search_locations[0]) / LIST).read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return entries


def move_to_cuda(program: Program) -> Program:
    """Return the program with its values as they are on GPUs; the ops are the same."""
    values = dict(program.values)
    for op in program.ops:
        for i in STATISTICS.get(op.target, ()):  # type: ignore[call-overload]
            name = op.results[i]
            if name is not None and values[name].dtype in HALVES:
                values[name] = _single(values[name])
    return replace(program, values=values)


def _single(info: ValueInfo) -> ValueInfo:
    """Return the same tensor in float32."""
    itemsize = torch.float32.itemsize
    return replace(
        info, dtype=torch.float32, bytes=info.bytes // info.dtype.itemsize * itemsize
    )
