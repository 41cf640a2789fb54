"""Every format that gnnplace reads: a valid file of it, how it is changed, and what reads it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import yaml

import gnnplace
from gnnplace.bench.rows import read_rows
from gnnplace.bench.standings import read_best_known
from gnnplace.bench.suite import cells, read_suite
from gnnplace.cli.main import run
from gnnplace.costs.profiling import cache
from gnnplace.costs.profiling.cache import Conditions
from gnnplace.files import cache_folder
from gnnplace.measurements import MeasurementStore
from gnnplace.measurements.calibration import (
    Calibration,
    read_calibration,
    write_calibration,
)
from gnnplace.placers import contract
from gnnplace.placers.etf import Etf
from gnnplace.plans.hybrid.convergence import read_epochs
from gnnplace.problem import read_problem, write_problem
from gnnplace.problem.cluster import make_preset
from gnnplace.problem.cluster.presets import read_cluster, write_cluster
from gnnplace.problem.formats import convert
from gnnplace.problem.placement import placement_to_data, read_placement_for
from gnnplace.run.training.training_step import read_training, write_training
from gnnplace.sharding import best_strategy, read_sharding
from gnnplace.sharding.answers import SplitOptions
from gnnplace.sharding.problem import write_sharding
from gnnplace.simulation import simulate
from gnnplace.train.data.captured_graph import read_captured
from gnnplace.train.data.datasets import verify
from gnnplace.train.sweep import read_space
from tests.campaign import mutations as m
from tests.problem.formats.test_attributed import diamond
from tests.problem.formats.test_chakra import binary as trace
from tests.problem.formats.test_chakra import lines as trace_lines
from tests.problem.formats.test_chakra import nodes as trace_nodes
from tests.problem.formats.test_dnn_partitioning import SMALL as PARTITIONING
from tests.problem.formats.test_onnx import model as onnx_model
from tests.problem.formats.test_pipedream import SMALL as PIPEDREAM
from tests.problem.formats.test_placeto import SMALL as PLACETO
from tests.sharding.problems import random_problem

DATASETS = Path(__file__).parents[2] / "data_sets"


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        prepare: puts valid files into a folder and returns the one to change.
        change: a faulty content from a valid one.
        read: raises an error of ours, or nothing.
    """

    name: str
    prepare: Callable[[Path], Path]
    change: Callable[[bytes, Random], bytes]
    read: Callable[[Path], Any]


def tree(load: Callable[[bytes], Any], dump: Callable[[Any], bytes]) -> Any:
    """Changes the tree, or the text, or both."""

    def change(content: bytes, rng: Random) -> bytes:
        kind = rng.random()
        if kind < 0.8:
            try:
                content = dump(m.changed_tree(load(content), rng))
            except (ValueError, yaml.YAMLError):  # a tree that the format cannot say
                kind = 1.0
        return m.changed_text(content, rng) if kind > 0.7 else content

    return change


JSON = tree(json.loads, m.as_json)
YAML = tree(yaml.safe_load, m.as_yaml)


def lines(content: bytes, rng: Random) -> bytes:
    """Changes a line of JSON Lines, or the text."""
    rows = content.splitlines()
    if rng.random() < 0.7:
        k = rng.randrange(len(rows))
        rows[k] = m.as_json(m.changed_tree(json.loads(rows[k]), rng))
        return b"\n".join(rows) + b"\n"
    return m.changed_text(content, rng)


def arrays(content: bytes, rng: Random) -> bytes:
    """Changes an entry of an archive, its header, or its bytes."""
    import io

    if rng.random() < 0.2:
        return m.changed_bytes(content, rng)
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        entries = {key: file[key] for key in file.files}
    if "header" in entries and rng.random() < 0.5:
        header = m.changed_tree(json.loads(str(entries["header"])), rng)
        text = m.as_json(header).decode("utf-8", "replace").replace("\x00", "")
        entries["header"] = np.array(text)
        if rng.random() < 0.8:
            found = io.BytesIO()
            np.savez(found, **entries)
            return found.getvalue()
    return m.changed_arrays(entries, rng)


def tensors(content: bytes, rng: Random) -> bytes:
    """Changes the header of a safetensors file, or its bytes."""
    if rng.random() < 0.4:
        return m.changed_bytes(content, rng)
    size = int.from_bytes(content[:8], "little")
    header = m.as_json(m.changed_tree(json.loads(content[8 : 8 + size]), rng))
    length = (
        len(header) if rng.random() < 0.9 else rng.choice([0, 2**40, 2**63, size + 1])
    )
    return length.to_bytes(8, "little") + header + content[8 + size :]


def quietly(path: Path, *arguments: str) -> None:
    """Runs a command on one of twenty contents of a file: starting commands takes longest."""
    if zlib.crc32(path.read_bytes()) % 20:
        return
    code = run([*arguments, "--quiet"])
    assert code in (0, 2, 3), (arguments, code)


def small_problem(folder: Path) -> Path:
    write_problem(folder / "problem.json", contract.training_chain())
    return folder / "problem.json"


def read_and_simulate(path: Path) -> None:
    """A problem that is read can be placed and simulated, or says why not."""
    problem = read_problem(path)
    data = placement_to_data(Etf().place(problem).placement, problem)
    (path.parent / "own.json").write_text(json.dumps(data))
    simulate(problem, read_placement_for(path.parent / "own.json", problem)[0])
    quietly(path, "simulate", str(path), str(path.parent / "own.json"), "--json")


def placement(folder: Path) -> Path:
    problem = contract.training_chain()
    small_problem(folder)
    data = placement_to_data(Etf().place(problem).placement, problem)
    (folder / "placement.json").write_text(json.dumps(data))
    return folder / "placement.json"


def read_placement(path: Path) -> None:
    made, problem = read_placement_for(path, contract.training_chain())
    simulate(problem, made)
    quietly(path, "simulate", str(path.parent / "problem.json"), str(path))


def cluster(folder: Path) -> Path:
    write_cluster(folder / "cluster.yaml", make_preset("mixed-a100-t4-4"))
    return folder / "cluster.yaml"


def sharding(folder: Path, what: str) -> Path:
    write_sharding(folder / "a.json", random_problem(3, nodes=4, edges=5, memory=True))
    return folder / what


def read_tables(path: Path) -> None:
    best_strategy(read_sharding(path.with_suffix(".json")))
    quietly(path, "shard", str(path.with_suffix(".json")), "--json")


_plans: dict[str, bytes] = {}


def shard_plan(folder: Path) -> Path:
    if not _plans:
        made = gnnplace.plan_shard("mlp?width=8&depth=1", SplitOptions(2))
        _plans["plan"] = json.dumps(made.to_data()).encode()
    (folder / "plan.json").write_bytes(_plans["plan"])
    return folder / "plan.json"


def read_plan(path: Path) -> None:
    gnnplace.read_shard_plan(path).save(path.with_name("again.json"))


def calibration(folder: Path) -> Path:
    write_calibration(folder / "c.json", Calibration(1e-6, 2e-6, 3e-6, 0.1), 0.2)
    return folder / "c.json"


def suite(folder: Path) -> Path:
    small_problem(folder)
    data = {
        "name": "tiny",
        "problems": [{"file": "problem.json"}, {"family": "layered", "seed": 1},
                     {"model": "mlp", "cluster": "pcie-a100-4", "microbatches": 2}],
        "placers": ["etf", "heft"], "constructions": ["single"], "seeds": [0, 1],
        "budgets": [0, 0.5], "timeout": 30.0,
    }  # fmt: skip
    (folder / "suite.yaml").write_bytes(m.as_yaml(data))
    return folder / "suite.yaml"


_rows: dict[str, bytes] = {}


def rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    if not _rows:
        small_problem(folder)
        data = {
            "name": "rows",
            "problems": [{"file": "problem.json"}],
            "placers": ["etf", "heft"],
        }
        (folder / "suite.yaml").write_bytes(m.as_yaml(data))
        assert (
            run(["bench", str(folder / "suite.yaml"), "-o", str(folder / "out")]) == 0
        )
        _rows["rows"] = (folder / "out" / "rows.jsonl").read_bytes()
    path.write_bytes(_rows["rows"])
    return path


def read_result_rows(path: Path) -> None:
    read_rows(path)
    quietly(path, "bench", "summary", str(path))


def best_known(folder: Path) -> Path:
    best = {
        "step_time": 1.0,
        "digest": "1:d",
        "placer": "etf",
        "budget": 0.0,
        "seed": 0,
    }
    data = {
        "format": "gnnplace-best-known",
        "version": 1,
        "problems": {"a": best | {"commit": ""}},
    }
    (folder / "best.json").write_bytes(m.as_json(data))
    return folder / "best.json"


def text_file(name: str, text: str) -> Callable[[Path], Path]:
    def prepare(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return prepare


def binary_file(name: str, make: Callable[[], bytes]) -> Callable[[Path], Path]:
    def prepare(folder: Path) -> Path:
        (folder / name).write_bytes(make())
        return folder / name

    return prepare


def training(folder: Path) -> Path:
    import torch

    values = {"w": torch.ones(3), "optimizer.w:step": torch.ones(())}
    write_training(folder / "t.safetensors", values, 3, [{"lr": 0.1}])
    return folder / "t.safetensors"


def captured(folder: Path) -> Path:
    source = DATASETS / "networks" / "unet-small.npz"
    return Path(shutil.copy(source, folder / source.name))


def sums(folder: Path) -> Path:
    name = captured(folder).name
    all_sums = (DATASETS / "networks" / "SHA256SUMS").read_text().splitlines()
    (folder / "SHA256SUMS").write_text(
        next(x for x in all_sums if x.endswith(name)) + "\n"
    )
    return folder / "SHA256SUMS"


def cached(folder: Path) -> Path:
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    cache.store("ops", "k", [1.0, 2.0], Conditions(now, now, 0.1, 0.1))
    return cache_folder() / "ops" / "k.json"


def read_cached(path: Path) -> None:
    found = cache.load("ops", "k")
    assert found is None or isinstance(found[1], Conditions)
    fits = lambda value: value == [1.0, 2.0]  # noqa: E731
    cache.get_or_measure("ops", "k", lambda: ([1.0, 2.0], 0.0), what="it", fits=fits)


_stores: dict[str, bytes] = {}


def store(folder: Path) -> Path:
    path = folder / "store.db"
    if not _stores:
        MeasurementStore(str(path))
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        _stores["store"] = path.read_bytes()
        path.unlink()
    path.write_bytes(_stores["store"])
    return path


def read_store(path: Path) -> None:
    for rest in (path.with_name("store.db-wal"), path.with_name("store.db-shm")):
        rest.unlink(missing_ok=True)
    MeasurementStore(str(path)).runs()


CSV = "batch,epochs\n64,10\n128,11\n256,14\n"
SPACE = "model.init_args.hidden: 8|16\ndata.seed: 0..3\nmodel.lr: 1.0e-4..1e-2:log\n"
FORMATS = [
    Format("problem", small_problem, JSON, read_and_simulate),
    Format("placement", placement, JSON, read_placement),
    Format("cluster", cluster, YAML, read_cluster),
    Format("sharding", lambda f: sharding(f, "a.json"), JSON, read_tables),
    Format("sharding tables", lambda f: sharding(f, "a.npz"), arrays, read_tables),
    Format("shard plan", shard_plan, JSON, read_plan),
    Format("calibration", calibration, JSON, read_calibration),
    Format("suite", suite, YAML, lambda path: cells(read_suite(path))),
    Format("rows", rows, lines, read_result_rows),
    Format("best known", best_known, JSON, read_best_known),
    Format("pipedream", text_file("net.txt", PIPEDREAM), m.changed_text,
           lambda path: convert(path, "pipedream", make_preset("nvlink-a100-2"))),
    Format("dnn-partitioning", text_file("net.json", json.dumps(PARTITIONING)), JSON,
           lambda path: convert(path, "dnn-partitioning", None)),
    Format("placeto", text_file("net.json", json.dumps(PLACETO)), JSON,
           lambda path: convert(path, "placeto", None)),
    Format("networkx", text_file("net.json", json.dumps(nx.node_link_data(diamond()))), JSON,
           lambda path: convert(path, "networkx")),
    Format("graphml", text_file("net.graphml", "\n".join(nx.generate_graphml(diamond()))),
           m.changed_text, lambda path: convert(path, "graphml")),
    Format("onnx", binary_file("net.onnx", onnx_model), m.changed_bytes,
           lambda path: convert(path, "onnx")),
    Format("chakra", binary_file("net.et", lambda: trace(trace_nodes())), m.changed_bytes,
           lambda path: convert(path, "chakra")),
    Format("chakra (JSON)", binary_file("net.et", lambda: trace_lines(trace_nodes())), lines,
           lambda path: convert(path, "chakra")),
    Format("training", training, tensors, read_training),
    Format("captured graph", captured, arrays, read_captured),
    Format("checksums", sums, m.changed_text, lambda path: verify(path.parent)),
    Format("epochs (CSV)", text_file("epochs.csv", CSV), m.changed_text, read_epochs),
    Format("epochs (YAML)", text_file("epochs.yaml", "64: 10\n128: 11\n"), YAML, read_epochs),
    Format("sweep space", text_file("space.yaml", SPACE), YAML,
           lambda path: read_space(str(path), [])),
    Format("cache entry", cached, JSON, read_cached),
    Format("store", store, m.changed_bytes, read_store),
]  # fmt: skip
