"""Reader of PipeDream's layer profiles (Narayanan et al., SOSP 2019).

A line a node, ``nodeK -- description -- forward_compute_time=MS, backward_compute_time=MS,
activation_size=BYTES, parameter_size=BYTES``, where a size may be a list ``[a; b]`` for a layer
with several outputs; a tab-indented line an edge, ``nodeA -- nodeB``. What stands behind them, such
as the ``stage_id`` that PipeDream's optimizer writes, is its answer and not part of the problem: it
is left out, and named by a ``ChangedWarning``.

A node becomes a forward op; a backward op, unless it is an input (nothing before it, no backward
time, no parameters) or the whole profile has no backward times; and where it has parameters an
update op of no time (the profile does not say). Those of a node with parameters share a
colocation class. What we assume, as the profile does not
say it: the backward op of a layer needs the layer's output and its inputs; the gradient of an
activation is as large as the activation, that of the parameters as large as them; state is
``COPIES`` times the parameters (3: parameter, gradient, momentum). Times were measured on
PipeDream's GPU and are taken over for every device kind, marked estimated.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnplace.errors import ChangedWarning, FormatError
from gnnplace.files import read_text, within
from gnnplace.graph import ComputationGraph
from gnnplace.problem import BACKWARD, FORWARD, UPDATE, Problem, build_problem
from gnnplace.problem.cluster import Cluster, make_preset

KEYS = (
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
)
COPIES = 3.0
DEFAULT_CLUSTER = "pcie-v100-4"
OPTION = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")


@dataclass(frozen=True)
class PipedreamLayer:
    """One node: seconds and bytes."""

    name: str
    description: str
    forward: float
    backward: float
    activation: float
    parameters: float


def read_pipedream(path: str | Path, cluster: Cluster | None) -> Problem:
    """Read a profile as a training step on ``cluster`` (four V100 on PCIe by default).

    Raises:
        FormatError: naming the file, the line and the fault.
    """
    profile = parse_profile(str(path), read_text(path))
    with within(path):
        cluster = cluster or make_preset(DEFAULT_CLUSTER)
        problem = _problem(Path(path).stem, profile.layers, profile.edges, cluster)
    if profile.unread:
        options = ", ".join(
            f"{name} of {n} layers" for name, n in profile.unread.items()
        )
        line = (
            f"{path}: {options}: left out; a placement is searched anew, without these"
        )
        warnings.warn(line, ChangedWarning, stacklevel=3)
    return problem


@dataclass(frozen=True)
class LayerProfile:
    """The layers of one network with their times and sizes.

    Attributes:
        layers: By name, as they stand in the file.
        edges: Names of producer and consumer.
        unread: Options behind layers that a problem has no place for, with how many layers have
            them.
    """

    layers: dict[str, PipedreamLayer]
    edges: list[tuple[str, str]]
    unread: Counter[str]


def parse_profile(source: str, text: str) -> LayerProfile:
    """Return the layers that a profile's text describes.

    Args:
        source: Name of the file, for messages.
        text: What stands in it.

    Raises:
        FormatError: naming the file, the line and the fault.
    """
    layers: dict[str, PipedreamLayer] = {}
    edges: dict[tuple[str, str], int] = {}
    unread: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        location = f"{source}: line {number}"
        parts = [part.strip() for part in line.split(" -- ")]
        if not line.strip():
            continue
        if line.startswith(("\t", " ")):
            if len(parts) != 2:
                raise FormatError(f"{location}: an edge must read 'nodeA -- nodeB'")
            edges[parts[0], parts[1]] = number
            continue
        layer, options = _layer(parts, location)
        if layer.name in layers:
            raise FormatError(f"{location}: node {layer.name!r} is repeated")
        layers[layer.name] = layer
        unread.update(options)
    for (a, b), number in edges.items():
        for end in (a, b):
            if end not in layers:
                raise FormatError(f"{source}: line {number}: no node is named {end!r}")
    if not layers:
        raise FormatError(f"{source}: no node; is it a PipeDream profile?")
    return LayerProfile(layers=layers, edges=list(edges), unread=unread)


def _layer(parts: list[str], where: str) -> tuple[PipedreamLayer, list[str]]:
    """Return a layer, and the names of options that stand beside its times and sizes."""
    if len(parts) < 3:
        raise FormatError(
            f"{where}: a node must read 'name -- description -- key=value, ...'"
        )
    # The optimizer writes "-- stage_id=0" behind the profile's own part.
    profiled = [k for k, part in enumerate(parts) if f"{KEYS[0]}=" in part]
    if profiled:
        position = profiled[-1]
    else:
        position = len(parts) - 1
    fields = dict(OPTION.findall(", ".join(parts[position:])))
    values = [_number(fields, key, where) for key in KEYS]
    layer = PipedreamLayer(
        name=parts[0],
        description=" -- ".join(parts[1:position]),
        forward=values[0] / 1e3,
        backward=values[1] / 1e3,
        activation=values[2],
        parameters=values[3],
    )
    without_key = [part for part in parts[position + 1 :] if not OPTION.search(part)]
    return layer, [name for name in fields if name not in KEYS] + without_key


def _number(fields: dict[str, str], key: str, where: str) -> float:
    if key not in fields:
        raise FormatError(f"{where}: {key} is missing")
    try:
        value = sum(
            float(part) for part in fields[key].strip("[]").split(";") if part.strip()
        )
    except ValueError:
        raise FormatError(f"{where}: {key}={fields[key]!r} is not a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise FormatError(
            f"{where}: {key}={fields[key]!r} must be finite and not negative"
        )
    return value


class _AddedOps:
    """Ops as they are added: names, seconds, phases, classes and the layers they come from."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.time: list[float] = []
        self.phase: list[int] = []
        self.layer: list[PipedreamLayer] = []

    def add(
        self, suffix: str, layer: PipedreamLayer, seconds: float, phase: int
    ) -> int:
        self.names.append(layer.name + suffix)
        self.time.append(seconds)
        self.phase.append(phase)
        self.layer.append(layer)
        return len(self.names) - 1


def _problem(
    name: str,
    layers: dict[str, PipedreamLayer],
    edges: list[tuple[str, str]],
    cluster: Cluster,
) -> Problem:
    ops = _AddedOps()
    trained = _select_trained(layers, edges)
    weighted = [layer for layer in trained if layer.parameters > 0]
    forward = {
        k: ops.add("", layer, layer.forward, FORWARD) for k, layer in layers.items()
    }
    backward = {x.name: ops.add("/backward", x, x.backward, BACKWARD) for x in trained}
    update = {x.name: ops.add("/update", x, 0.0, UPDATE) for x in weighted}
    tensors = _tensors(layers, edges, forward, backward)
    tensors += [(backward[k], layers[k].parameters, [u]) for k, u in update.items()]
    n = len(ops.names)
    state = np.zeros(n)
    state[list(forward.values())] = [
        COPIES * layer.parameters for layer in layers.values()
    ]
    return build_problem(
        name,
        ComputationGraph.from_tensors(ops.names, tensors),
        cluster,
        {kind: ops.time for kind in cluster.kinds},
        state=state,
        phase=np.array(ops.phase, dtype=np.int8),
        colocate=tuple(
            layer.name if layer.parameters > 0 else None for layer in ops.layer
        ),
        module=tuple(layer.description for layer in ops.layer),
        estimated=np.ones(n, dtype=bool),
    )


def _select_trained(
    layers: dict[str, PipedreamLayer], edges: list[tuple[str, str]]
) -> list[PipedreamLayer]:
    """Return the layers with a backward op.

    Gradients pass through layers whose backward pass takes no time.
    """
    if not any(layer.backward > 0 for layer in layers.values()):
        return []
    fed = {b for _, b in edges}
    return [
        x
        for x in layers.values()
        if x.name in fed or x.backward > 0 or x.parameters > 0
    ]


def _tensors(
    layers: dict[str, PipedreamLayer],
    edges: list[tuple[str, str]],
    forward: dict[str, int],
    backward: dict[str, int],
) -> list[tuple[int, float, list[int]]]:
    """Return activations, read by next layers and backward ops, and gradients."""
    successors: dict[str, list[str]] = {name: [] for name in layers}
    predecessors: dict[str, list[str]] = {name: [] for name in layers}
    for a, b in edges:
        successors[a].append(b)
        predecessors[b].append(a)
    tensors = []
    for name, layer in layers.items():
        saved = [backward[k] for k in (name, *successors[name]) if k in backward]
        consumers = [forward[k] for k in successors[name]] + saved
        tensors.append((forward[name], layer.activation, consumers))
    for name in backward:
        for source in predecessors[name]:
            if source in backward:
                tensors.append(
                    (backward[name], layers[source].activation, [backward[source]])
                )
    return tensors
