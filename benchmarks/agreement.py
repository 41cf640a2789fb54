"""Our re-implementations beside their authors' code on the same cases.

    python -m benchmarks.agreement --pipedream P --dnn-partitioning D --pase S

``agreement.json`` has what the authors' code gave: the case, the arguments, the figure, and the
repository, commit and file. This command runs ours on the same cases, writes
``results/agreement.jsonl`` and ``docs/agreement.md``. P and D are clones of msr-fiddle/pipedream
and msr-fiddle/dnn-partitioning, S is a folder of PaSE's cost tables (``gnnplace-sharding``); cases
of a folder that is not given keep their rows. Cases that are ``drawn-SEED`` are made here
(``drawn_profile``), so that a test repeats them without any of these.

What is compared is the value of each method's own objective on each method's own costs, which are
no prices of ours:

* `pipedream`: the least slowest stage with replicas. A stage of r replicas takes (seconds of its
  layers + 4 (r - 1) bytes of parameters / (r bandwidth)) / r (``compute_partitioning`` of theirs).
  Theirs cuts a network at any of its antichains, ours at any place of one topological
  order of the layers: on a chain these are the same cuts.
* `contiguous`: the least slowest stage without replicas and transfers (``--straight_pipeline``).
* `alpa`: the least sum of stages + (M - 1) slowest stage, stages on 1, 2, 4 or 8 devices, with the
  costs of `pipedream` (``training_dp``). Theirs uses all devices, ours may
  leave some idle.
* `dnn-partitioning`: the least load of the busiest device (``dp.cpp``): our placement is
  judged by their objective, where a device pays once for a tensor that it sends and once for one
  that it receives, and CPUs pay nothing for tensors.
* `pase`: the least cost of a strategy on tables of their cost model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

import gnnplace
from gnnplace.arrays import FloatArray, IntArray
from gnnplace.files import parse, read_json, read_text, write_text
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.plans.search.drafts import (
    MeshChoices,
    cut_for_least_largest,
    cut_for_least_step,
)
from gnnplace.plans.search.partition import SECONDS, WIDTH, largest_at_work
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.formats.dnn_partitioning import (
    BANDWIDTH,
    PartitioningFile,
    make_own_cluster,
)
from gnnplace.problem.formats.pipedream import parse_profile
from gnnplace.sharding import best_strategy, read_sharding

HERE = Path(__file__).parent
AUTHORS = HERE / "agreement.json"
ROWS = HERE / "results" / "agreement.jsonl"
PAGE = HERE.parent / "docs" / "agreement.md"
EQUAL = 1e-6  # relative difference up to which figures are called equal
UNLIMITED = 1e18  # bytes, and bytes per second
DRAWN = "drawn-"
PREFACE = """# Ours beside their authors' code

Written by `python -m benchmarks.agreement`. We wrote several published methods anew, to have them
on our problems. Here they meet their authors' code on the same cases: the value of each method's
own objective, by that method's own costs, which are no prices of ours. A ratio of 1 means that
both are equally good, above 1 that theirs is better. *Equal* is within a millionth.

Theirs ran on a CPU, unchanged, at the commit that the link names (of Alpa the programme alone,
without its package). Its figures are in `benchmarks/agreement.json`, rows in
`benchmarks/results/agreement.jsonl`. Cases called `drawn` are made by the command and repeated by
a test; the others are the authors' own files, which are not part of this repository. Figures of
`pase` are the least costs of tables that the authors' public cost model gives.

What differs, where a ratio is not 1:

- **`dnn-partitioning`**: their CPUs pay nothing for tensors that come and go, ours do, so that
  ours uses a CPU less: `resnet50` as operators is such a case. That ours is 0.5 % better on the
  layers of `resnet50_training` is not explained. Inception (326 and 652 nodes) has no row:
  `dp.cpp` did not end within four minutes on the first and was not tried on the second.
- **`pipedream`**: theirs cuts a network at any antichain, our plans a chain of segments. On
  chains the cuts are the same; of networks with branches ours has one order of the layers.
- **`alpa`**: theirs uses all devices, ours may leave some idle. Until this table our version
  tried twelve values of the slowest stage and missed 3.5 % in one case; it goes through all that
  matter since.
"""
Case = Mapping[str, Any]
"""An entry of ``agreement.json``."""


@dataclass(frozen=True, eq=False)
class LayerChain:
    """Layers in an order that they can be cut in.

    Attributes:
        seconds: Of a forward and a backward pass. [layers]
        parameters: Bytes. [layers]
    """

    seconds: FloatArray
    parameters: FloatArray


def drawn_profile(seed: int, num_layers: int = 12) -> str:
    """Return a profile of a chain in PipeDream's format: layers as uneven as a CNN's."""
    rng = np.random.default_rng(seed)
    lines = []
    for k in range(num_layers):
        forward = rng.uniform(1.0, 10.0)
        activation, parameters = rng.integers(10**5, 10**7), rng.integers(10**4, 10**7)
        lines.append(
            f"node{k} -- Layer{k} -- forward_compute_time={forward:.3f}, "
            f"backward_compute_time={2 * forward:.3f}, activation_size={activation}.000, "
            f"parameter_size={parameters}.000"
        )
    lines += [f"\tnode{k} -- node{k + 1}" for k in range(num_layers - 1)]
    return "\n".join(lines) + "\n"


def drawn_partitioning(seed: int) -> str:
    """Return a training step in dnn-partitioning's format: layers with two skips, gradients."""
    rng = np.random.default_rng(seed)
    num_layers = 10
    nodes, edges = [], []
    costs = rng.uniform(0.1, 2.0, num_layers)
    pairs = [(k, k + 1) for k in range(num_layers - 1)] + [(2, 4), (6, 8)]
    for k in range(num_layers):
        latency = float(rng.uniform(1.0, 10.0))
        for backward in (False, True):
            nodes.append(
                {
                    "id": k + num_layers * backward,
                    "supportedOnFpga": 1,
                    "cpuLatency": 100.0 * latency,
                    "fpgaLatency": latency * (1 + backward),
                    "isBackwardNode": int(backward),
                    "colorClass": k,
                    "size": float(rng.integers(10**9, 3 * 10**9)),
                }
            )
    for a, b in pairs:
        edges.append({"sourceId": a, "destId": b, "cost": costs[a]})
        edges.append(
            {"sourceId": b + num_layers, "destId": a + num_layers, "cost": costs[a]}
        )
    for k in range(num_layers):
        edges.append({"sourceId": k, "destId": k + num_layers, "cost": costs[k]})
    # The output of a node has one cost, whoever reads it.
    largest: dict[int, float] = {}
    for edge in edges:
        source = int(edge["sourceId"])
        largest[source] = max(largest.get(source, 0.0), float(edge["cost"]))
    for edge in edges:
        edge["cost"] = largest[int(edge["sourceId"])]
    file = {
        "maxSizePerFPGA": 2e10,
        "maxFPGAs": 3,
        "maxCPUs": 0,
        "nodes": nodes,
        "edges": edges,
    }
    return json.dumps(file)


def read_chain(path: Path) -> LayerChain:
    """Return the layers that PipeDream's optimizer cuts, in a topological order.

    It takes inputs out, and sinks that only take an item of a tuple.
    """
    profile = parse_profile(str(path), read_text(path))
    graph = nx.DiGraph(profile.edges)
    graph.add_nodes_from(profile.layers)
    layers = [
        layer
        for layer in (profile.layers[name] for name in nx.topological_sort(graph))
        if not (
            layer.description.startswith("Input") and not graph.in_degree(layer.name)
        )
        and not (
            layer.description.startswith("__getitem__")
            and not graph.out_degree(layer.name)
        )
    ]
    return LayerChain(
        seconds=np.array([layer.forward + layer.backward for layer in layers]),
        parameters=np.array([layer.parameters for layer in layers]),
    )


def replicated_choices(
    chain: LayerChain, replicas: Sequence[int], num_devices: int, bandwidth: float
) -> MeshChoices:
    """Return what stages with these numbers of replicas take by PipeDream's costs."""
    num_layers = len(chain.seconds)
    idle = largest_at_work(np.zeros(num_layers))
    sums = np.zeros((len(replicas), WIDTH + len(idle), num_layers + 1))
    for table, r in enumerate(replicas):
        exchanged = 4.0 * (r - 1) * chain.parameters / (r * bandwidth)
        sums[table, SECONDS, 1:] = np.cumsum((chain.seconds + exchanged) / r)
    first = np.arange(num_devices)
    size = np.array(replicas, dtype=np.int64)
    fits = first[None, :] + size[:, None] <= num_devices
    return MeshChoices(
        sums=sums,
        memory=np.full(len(replicas), UNLIMITED),
        end=np.zeros((len(replicas), num_layers + 1)),
        table=np.where(fits, np.arange(len(replicas))[:, None], -1),
        size=size,
    )


def slowest_stage(case: Case, path: Path) -> float:
    """Return the seconds of the slowest stage of `pipedream`."""
    chain, count = read_chain(path), case["devices"]
    choices = replicated_choices(chain, range(1, count + 1), count, case["bandwidth"])
    stages = cut_for_least_largest(choices, 1)
    assert stages is not None
    return float(choices.stage_seconds(1, stages).max())


def step_seconds(case: Case, path: Path) -> float:
    """Return the seconds of a step of `alpa`: sum of stages + (M - 1) slowest stage."""
    chain, count = read_chain(path), case["devices"]
    sizes = [2**k for k in range(count.bit_length())]
    choices = replicated_choices(chain, sizes, count, case["bandwidth"])
    steps = []
    for stages in cut_for_least_step(choices, case["microbatches"]):
        seconds = choices.stage_seconds(case["microbatches"], stages)
        steps.append(float(seconds.sum() + (case["microbatches"] - 1) * seconds.max()))
    return min(steps)


def linked(devices: Sequence[Device], bandwidth: float) -> Cluster:
    """Return devices with equal links without latency between all of them."""
    links = tuple(
        Link(source=a.name, target=b.name, latency=0.0, bandwidth=bandwidth)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(tuple(devices), links)


def split(problem: Problem) -> ThroughputResult:
    """Return our contiguous split with the least load of the busiest device."""
    result = gnnplace.place(
        problem, placer="contiguous", budget=0.0, objective=gnnplace.THROUGHPUT
    )
    assert isinstance(result, ThroughputResult)
    return result


def unreplicated_stage(case: Case, path: Path) -> float:
    """Return the seconds of the busiest device of `contiguous`.

    As in theirs inputs take no time and a layer's passes stay on one device.
    """
    devices = [
        Device(name=f"gpu:{k}", kind="gpu", memory=UNLIMITED)
        for k in range(case["devices"])
    ]
    cluster = linked(devices, UNLIMITED)
    problem = gnnplace.convert(path, "pipedream", cluster)
    counted = [not str(module).startswith("Input") for module in problem.module]
    seconds = {
        kind: np.where(counted, time, 0.0) for kind, time in problem.time.items()
    }
    layers = tuple(name.partition("/")[0] for name in problem.graph.names)
    return split(replace(problem, time=seconds, colocate=layers)).interval


def busiest_device(case: Case, path: Path) -> float:
    """Return the load of `dnn-partitioning` for our contiguous split, in ms."""
    file = parse(PartitioningFile, read_json(path), str(path))
    cluster = linked(make_own_cluster(file).devices, BANDWIDTH)
    problem = gnnplace.convert(path, "dnn-partitioning", cluster)
    return largest_load(file, cluster, split(problem).placement.device)


def largest_load(file: PartitioningFile, cluster: Cluster, device: IntArray) -> float:
    """Return the largest load of a device by ``computeLoadForResultOrg`` of dp.cpp.

    Args:
        file: The network.
        cluster: Its accelerators and CPUs.
        device: Index of each node's device. [nodes]
    """
    is_cpu = [device.kind == "cpu" for device in cluster.devices]
    load = np.zeros(len(is_cpu))
    index = {node.id: k for k, node in enumerate(file.nodes)}
    for k, node in enumerate(file.nodes):
        accelerator = node.fpgaLatency if node.supportedOnFpga else np.inf
        load[device[k]] += node.cpuLatency if is_cpu[device[k]] else accelerator
    cost: dict[int, float] = {}
    readers: dict[int, set[int]] = {}
    for edge in file.edges:
        source = index[edge.sourceId]
        cost[source] = edge.cost
        readers.setdefault(source, set()).add(int(device[index[edge.destId]]))
    for source, devices in readers.items():
        sender = int(device[source])
        receivers = devices - {sender}
        paying = [*receivers, sender] if receivers else []
        for pays in paying:
            load[pays] += 0.0 if is_cpu[pays] else cost[source]
    return float(load.max())


def strategy_cost(case: Case, path: Path) -> float:
    """Return the cost of the strategy of `pase`."""
    return best_strategy(read_sharding(path)).cost


@dataclass(frozen=True)
class Method:
    """One of our re-implementations.

    Attributes:
        figure: Returns the value of its objective for a case and the case's file.
        drawn: Returns the text of a drawn case by its seed; None: it has none.
        says: What the figure is, with its unit.
    """

    figure: Callable[[Case, Path], float]
    drawn: Callable[[int], str] | None
    says: str


METHODS = {
    "pipedream": Method(slowest_stage, drawn_profile, "slowest stage, s"),
    "contiguous": Method(unreplicated_stage, drawn_profile, "busiest device, s"),
    "alpa": Method(step_seconds, drawn_profile, "step, s"),
    "dnn-partitioning": Method(
        busiest_device, drawn_partitioning, "busiest device, ms"
    ),
    "pase": Method(strategy_cost, None, "cost, FLOP"),
}


def row_of(case: Case, path: Path) -> dict[str, Any]:
    """Return our figure of a case beside that of its authors' code."""
    ours = METHODS[case["method"]].figure(case, path)
    return {**case, "ours": ours, "over": ours / case["authors"]}


def drawn_row(case: Case, folder: Path) -> dict[str, Any]:
    """Return the row of a drawn case, whose file is written into a folder."""
    draw = METHODS[case["method"]].drawn
    assert draw is not None
    path = folder / f"{case['method']}.{case['case']}"
    write_text(path, draw(int(case["case"].removeprefix(DRAWN))))
    return row_of(case, path)


def is_drawn(case: Case) -> bool:
    """Return whether a case is made here."""
    return str(case["case"]).startswith(DRAWN)


def rows_of(
    cases: Iterable[Case], clones: Mapping[str, Path | None]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of cases: drawn ones, and those of clones that are given."""
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if is_drawn(case):
                yield drawn_row(case, Path(folder))
                continue
            clone = clones[case["repository"]]
            if clone is not None:
                yield row_of(case, clone / case["file"])


def key_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return what tells a row from all others."""
    return row["method"], row["case"], row["arguments"]


def page(
    rows: Sequence[Mapping[str, Any]], sources: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the table of all cases as Markdown."""
    lines = [PREFACE]
    lines += [
        "| ours | their code | cases | equal | ours over theirs |",
        "|---|---|---:|---:|---:|",
    ]
    for name in METHODS:
        over = [row["over"] for row in rows if row["method"] == name]
        if over:
            equal = sum(abs(ratio - 1.0) < EQUAL for ratio in over)
            cells = [
                f"`{name}`",
                source_link(sources[name]),
                f"{len(over)}",
                f"{equal}",
            ]
            lines.append(
                f"| {' | '.join(cells)} | {min(over):.4f} to {max(over):.4f} |"
            )
    lines += ["", "## Each case", ""]
    lines += ["| ours | case | arguments of theirs | figure | theirs | ours | over |"]
    lines += ["|---|---|---|---|---:|---:|---:|"]
    for row in rows:
        cells = [
            f"`{row['method']}`",
            f"`{row['case']}`",
            f"`{row['arguments']}`" if row["arguments"] else "",
            METHODS[row["method"]].says,
            f"{row['authors']:.6g}",
            f"{row['ours']:.6g}",
            f"{row['over']:.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def source_link(source: Mapping[str, str]) -> str:
    """Return where the authors' code stands: a link to the file, or the paper without one."""
    if "paper" in source:
        return source["paper"]
    address = f"https://github.com/{source['repository']}/blob/{source['commit']}/{source['path']}"
    return (
        f"[{source['path']}]({address}) of {source['repository']} ({source['licence']})"
    )


def main() -> int:
    """Run ours on every case whose file is here, write rows and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--pipedream", type=Path, help="a clone of msr-fiddle/pipedream"
    )
    parser.add_argument(
        "--dnn-partitioning", type=Path, help="a clone of its repository"
    )
    parser.add_argument("--pase", type=Path, help="a folder of PaSE's cost tables")
    args = parser.parse_args()
    file = json.loads(read_text(AUTHORS))
    clones = {
        "msr-fiddle/pipedream": args.pipedream,
        "msr-fiddle/dnn-partitioning": args.dnn_partitioning,
        "pase": args.pase,
    }
    rows = {key_of(row): row for row in read_rows()}
    rows |= {key_of(row): row for row in rows_of(file["cases"], clones)}
    ordered = [rows[key_of(case)] for case in file["cases"] if key_of(case) in rows]
    write_text(ROWS, "".join(json.dumps(row) + "\n" for row in ordered))
    write_text(PAGE, page(ordered, file["sources"]))
    return 0


def read_rows() -> list[dict[str, Any]]:
    """Return the committed rows."""
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in read_text(ROWS).splitlines()]


if __name__ == "__main__":
    sys.exit(main())
