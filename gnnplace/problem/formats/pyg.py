"""Problems as PyTorch Geometric's ``Data``, and back.

Fields of n ops, E consumptions and K kinds of devices: ``edge_index`` [2, E] from producer to
consumer; ``edge_bytes`` [E] of the tensor that is consumed, ``edge_tensor`` [E] its number (without
it each edge is a tensor); ``time`` [n, K] or [n] in seconds, ``kinds``, their names (those of the
cluster by default); or ``flops`` [n] and ``bytes`` [n], for a kind's roofline, which is marked
``estimated``. Optional: ``state`` [n] bytes, ``phase`` [n] 0 forward, 1 backward, 2 update,
``unit`` [n], a class of ops that share a device or -1, ``names``. ``to_pyg`` writes all but flops
and bytes. What a ``Data`` cannot say stays behind: links, pins, forbids, micro-batches.

Files are ``torch.save`` of a ``Data``, read with ``weights_only``: no code of theirs runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.errors import FormatError, InputError
from gnnplace.files import within
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import DEFAULT_CLUSTER, GivenOp, make_problem
from gnnplace.problem.problem import PHASES, Problem

if TYPE_CHECKING:
    from torch_geometric.data import Data


def to_pyg(problem: Problem) -> Data:
    """Return a problem as ``Data``."""
    import torch
    from torch_geometric.data import Data

    graph = problem.graph
    kinds = list(problem.cluster.kinds)
    tensor = graph.consumption_tensor
    classes = {
        name: k for k, name in enumerate(sorted(filter(None, set(problem.colocate))))
    }
    units = [-1 if name is None else classes[name] for name in problem.colocate]
    times = np.stack([problem.time[kind] for kind in kinds], axis=1)
    return Data(
        edge_index=torch.from_numpy(
            np.stack([graph.producer[tensor], graph.consumer])
        ).long(),
        edge_bytes=torch.from_numpy(graph.size[tensor]),
        edge_tensor=torch.from_numpy(tensor.astype(np.int64)),
        time=torch.from_numpy(times),
        state=torch.from_numpy(problem.state.copy()),
        phase=torch.from_numpy(problem.phase.astype(np.int64)),
        unit=torch.tensor(units),
        kinds=kinds,
        names=list(graph.names),
        num_nodes=graph.num_ops,
    )


def from_pyg(
    data: Data, cluster: Cluster | str | None = None, name: str = "graph"
) -> Problem:
    """Return a ``Data`` as a problem.

    Args:
        data: fields as the module says.
        cluster: or a preset's name or file; four V100 on PCIe by default.
        name: The name of the problem.

    Raises:
        InputError: naming the field, the number and the fault.
    """
    from torch_geometric.data import Data

    from gnnplace.problem.cluster.presets import load_cluster

    if cluster is None or isinstance(cluster, str):
        cluster = load_cluster(cluster or DEFAULT_CLUSTER)
    if not isinstance(data, Data):
        raise InputError(
            f"data: a {type(data).__name__}, not a torch_geometric.data.Data; a HeteroData becomes "
            "one by to_homogeneous()"
        )
    fields = data.to_dict()
    edges = _read_whole_numbers(fields, "edge_index", (2, None))
    columns = _columns(fields, int(data.num_nodes or 0), cluster)
    count = len(columns["names"])
    if edges.size and (edges.min() < 0 or edges.max() >= count):
        if edges.min() < 0:
            outside = int(edges.min())
        else:
            outside = int(edges.max())
        raise InputError(f"edge_index: {outside} is outside of {count} ops")
    # Edges of one tensor are one message a device. Without their numbers each is its own tensor.
    sizes = _array(fields, "edge_bytes", (edges.shape[1],))
    edge_tensor = np.arange(edges.shape[1])
    if "edge_tensor" in fields:
        edge_tensor = _read_whole_numbers(fields, "edge_tensor", edge_tensor.shape)
    tensors: dict[int, tuple[int, float, list[int]]] = {}
    for k, tensor in enumerate(edge_tensor.tolist()):
        source, target = (int(end) for end in edges[:, k])
        entry = tensors.setdefault(tensor, (source, float(sizes[k]), []))
        if entry[:2] != (source, float(sizes[k])):
            raise InputError(
                f"edge_tensor[{k}]: {tensor} has another producer or other bytes"
            )
        entry[2].append(target)
    ops = [
        GivenOp(
            str(columns["names"][k]),
            f"data[{k}]",
            {
                key: column[k]
                for key, column in columns.items()
                if column[k] is not None
            },
        )
        for k in range(count)
    ]
    return make_problem(name, ops, tensors.values(), cluster)


def _columns(
    given: dict[str, Any], count: int, cluster: Cluster
) -> dict[str, Sequence[Any]]:
    """Return what is said of each op, by the keys of ``GivenOp``."""
    columns: dict[str, Sequence[Any]] = {
        key: _array(given, key, (count,)).tolist()
        for key in ("flops", "bytes", "state")
        if key in given
    }
    if "time" in given:
        kinds = given.get("kinds", list(cluster.kinds))
        is_column = _numbers(given["time"], "time").ndim == 1
        times = _array(given, "time", (count,) if is_column else (count, len(kinds)))
        if times.ndim == 1:
            times_by_key = {"time": times}
        else:
            times_by_key = {f"time.{kind}": times[:, k] for k, kind in enumerate(kinds)}
        columns |= {key: column.tolist() for key, column in times_by_key.items()}
    if "phase" in given:
        phases = _read_whole_numbers(given, "phase", (count,)).tolist()
        columns["phase"] = [PHASES[p] if p in range(len(PHASES)) else p for p in phases]
    if "unit" in given:
        units = _read_whole_numbers(given, "unit", (count,)).tolist()
        columns["colocate"] = [None if unit < 0 else f"unit {unit}" for unit in units]
    names = given.get("names", [str(k) for k in range(count)])
    if len(names) != count:
        raise InputError(f"names: {len(names)} of {count} ops")
    return columns | {"names": names}


def _array(
    given: dict[str, Any], key: str, shape: tuple[int | None, ...]
) -> np.ndarray:
    """Return a field of numbers of any type, layout and device as an array.

    Raises:
        InputError: It is missing, holds no numbers, or has another shape; None fits any size.
    """
    if key not in given:
        raise InputError(f"{key}: missing")
    value = _numbers(given[key], key)
    fits = value.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, value.shape, strict=True)
    )
    if not fits:
        expected = "x".join("E" if n is None else str(n) for n in shape)
        raise InputError(f"{key}: has shape {value.shape}, must have {expected}")
    return value


def _numbers(field: object, key: str) -> np.ndarray:
    import torch

    if isinstance(field, torch.Tensor):
        if field.is_meta:
            raise InputError(f"{key}: on the meta device, which holds no numbers")
        if field.is_sparse:
            field = field.detach().cpu().to_dense()
        else:
            field = field.detach().cpu()
        if field.is_floating_point():
            field = field.double()  # NumPy has no bfloat16 and no float8
    try:
        return np.asarray(field)
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"{key}: no tensor of numbers; rows may have unlike lengths"
        ) from None


def _read_whole_numbers(
    given: dict[str, Any], key: str, shape: tuple[int | None, ...]
) -> np.ndarray:
    """Return a field of whole numbers.

    Raises:
        InputError: As `_array`, or a number is not whole.
    """
    value = _array(given, key, shape)
    try:
        with np.errstate(invalid="ignore"):  # NaN, which the comparison finds
            integers = value.astype(np.int64)
    except (TypeError, ValueError):
        raise InputError(f"{key}: must have whole numbers") from None
    unlike = np.argwhere(integers != value)
    if len(unlike):
        raise InputError(
            f"{key}{unlike[0].tolist()}: {value[tuple(unlike[0])]}: must be whole"
        )
    return integers


def read_pyg(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read a ``Data`` that ``torch.save`` wrote.

    Raises:
        FormatError: naming the file, the field and the fault.
    """
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    safe_classes = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        with torch.serialization.safe_globals(safe_classes):
            data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged file can make torch's reader raise anything.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if reason.startswith("Weights only"):
            reason = "it is no file of torch.save, or holds more than a Data of tensors"
        raise FormatError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(data, Data):
        raise FormatError(
            f"{path}: a {type(data).__name__}, not a torch_geometric.data.Data"
        )
    with within(path):
        return from_pyg(data, cluster, Path(path).stem)
