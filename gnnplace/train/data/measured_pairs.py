"""Measured pairs: step times of placements of captured graphs on two CPU workers.

``measure_pairs`` profiles the ops of every model of a folder of captured graphs on this machine,
makes ``PAIRS`` placements of each, and runs them as ``gnnplace execute`` does: real numbers,
checked against one process, the shortest step counts. Two files beside the graphs keep what came,
a JSON object a line, written as it comes; what is there is not measured again:

* ``profiles.jsonl``: a graph's name, nanoseconds of each op by the profile, the cluster with its
  measured links, and when;
* ``pairs.jsonl``: a graph's name, its model's spec and optimizer, who made the placement and with
  which seed, a digit for each op's device, predicted and measured seconds, the clock of the
  measurement, the steps that it is the shortest of, the error of a run that failed, and commit,
  versions, machine and time.

The predicted time is the simulator's with the profile's times and links (``profile_problem``), and
the run keeps to the order that the simulator predicted. Where other programs had the cores in
every step, the workers' own processor time counts and the clock is ``virtual``, not ``wall``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar
from zlib import crc32

import numpy as np
from pydantic import Field

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.errors import FormatError, MismatchError
from gnnplace.files import Schema, parse, read_text, write_text
from gnnplace.measurements import VIRTUAL, WALL
from gnnplace.problem import (
    Cluster,
    Problem,
    build_problem,
    cluster_from_data,
    cluster_to_data,
    describe_machine,
    list_versions,
    package_commit,
)
from gnnplace.simulation import Simulator, finish_placement
from gnnplace.train.data.captured import CapturedModel
from gnnplace.train.data.captured_graph import CapturedGraph, read_captured
from gnnplace.train.data.placements import PAIRS, distinct_placements
from gnnplace.train.workbench import (
    CaptureSettings,
    MeasurementSettings,
    StoreSettings,
    Workbench,
)

PROFILES, ROWS = "profiles.jsonl", "pairs.jsonl"
WORKERS = "cpu:2"
STEPS = 10  # Steps of a run; the shortest counts
NANOSECOND = 1e-9
R = TypeVar("R", bound=Schema)


class ProfileRow(Schema):
    """A line of ``profiles.jsonl``."""

    graph: str
    nanoseconds: list[int]
    cluster: dict[str, Any]
    began: str


class PairRow(Schema):
    """A line of ``pairs.jsonl``."""

    graph: str
    spec: str
    optimizer: str
    placer: str
    seed: int
    device: Annotated[str, Field(pattern="^[0-9]+$")]
    step_time: Annotated[float, Field(gt=0)]
    measured: Annotated[float, Field(gt=0)] | None
    clock: str
    steps: int
    error: str
    profile: str
    commit: str
    versions: dict[str, str]
    machine: dict[str, Any]
    when: str


@dataclass(frozen=True, eq=False)
class MeasuredProfile:
    """Op times of a graph on the machine that its placements were measured on.

    Attributes:
        time: Seconds of each op. [n]
        cluster: The workers and their measured links.
        began: The time at which it was made; a pair says which profile it was predicted with.
    """

    time: FloatArray
    cluster: Cluster
    began: str


@dataclass(frozen=True, eq=False)
class MeasuredGraph:
    """Placements of a graph that were measured.

    Attributes:
        profile: The costs that they were predicted with.
        placers: The placer of each placement. [P]
        device: The device of each op by each placement. [n, P]
        step_time: Predicted seconds. [P]
        measured: Measured seconds, nan where the run failed. [P]
        clocks: The clock of each measurement, ``wall`` or ``virtual``. [P]
    """

    profile: MeasuredProfile
    placers: tuple[str, ...]
    device: IntArray
    step_time: FloatArray
    measured: FloatArray
    clocks: tuple[str, ...]


def profile_problem(graph: CapturedGraph, profile: MeasuredProfile) -> Problem:
    """Return a captured graph with its profiled costs on the machine's workers.

    Raises:
        MismatchError: The profile has another number of ops.
    """
    if len(profile.time) != graph.num_ops:
        raise MismatchError(
            f"graph {graph.name!r}: {graph.num_ops} ops, its profile has "
            f"{len(profile.time)}; remove the graph's lines of {PROFILES} and {ROWS} and build "
            "the folder anew"
        )
    (kind,) = profile.cluster.kinds
    return build_problem(
        f"{graph.name} on {profile.cluster.name}",
        graph.graph,
        profile.cluster,
        {kind: profile.time},
        state=graph.state,
        phase=graph.phase,
        colocate=graph.colocate,
    )


def measure_pairs(
    folder: Path,
    models: Sequence[CapturedModel],
    say: Callable[[str], None],
    workbench: Callable[[CapturedModel], Workbench] | None = None,
) -> None:
    """Measure what is missing of the placements of a folder's graphs.

    Args:
        folder: The folder, which has the graphs of the models.
        models: The models; the seed of a model's placements is of its name.
        say: Called with a line of progress.
        workbench: What measures a model; without it, two CPU workers of this machine.
    """
    for number, model in enumerate(models, 1):
        place = f"{number}/{len(models)} {model.name}"
        seed = crc32(model.name.encode())
        rows = [row for row in _read_rows(folder) if row.graph == model.name]
        if len(rows) >= PAIRS:
            say(f"{place}: {len(rows)} pairs, kept")
            continue
        graph = read_captured(folder / f"{model.name}.npz")
        bench = (workbench or make_workbench)(model)
        profile = _read_profiles(folder).get(model.name)
        if profile is None:
            profile = _profile(folder, model.name, bench.problem)
        _check_same_ops(graph, bench.problem)
        problem = profile_problem(graph, profile)
        placements = distinct_placements(problem, seed)
        simulator = Simulator(problem)
        for index, placer in enumerate(placements.placers):
            device = np.ascontiguousarray(placements.device[:, index])
            digits = "".join(map(str, device.tolist()))
            if digits in {row.device for row in rows}:
                continue
            began = datetime.now(UTC)
            # The run keeps to the order that the prediction is of.
            placement = finish_placement(problem, device, simulator.complete(device))
            (measured,) = bench.measure([placement])
            clock = VIRTUAL if measured.disturbed else WALL
            row = PairRow(
                graph=model.name,
                spec=model.spec,
                optimizer=model.optimizer,
                placer=placer,
                seed=seed,
                device=digits,
                step_time=float(placements.step_time[index]),
                measured=measured.seconds,
                clock=clock if measured.seconds else "",
                steps=STEPS,
                error=measured.error,
                profile=profile.began,
                commit=package_commit(),
                versions=list_versions(),
                machine=_machine(),
                when=_text(began),
            )
            _append(folder / ROWS, row)
            took = (datetime.now(UTC) - began).total_seconds()
            say(f"{place} {placer}: {_outcome(row)}; {took:.1f} s")


def _outcome(row: PairRow) -> str:
    """Return what a row came to as a part of a line of progress."""
    if row.measured is None:
        return row.error
    return (
        f"predicted {1e3 * row.step_time:.1f} ms, measured {1e3 * row.measured:.1f} "
        f"({row.clock} clock)"
    )


def make_workbench(model: CapturedModel) -> Workbench:
    """Return what measures a model's placements on two CPU workers, keeping no store."""
    return Workbench(
        model.spec,
        WORKERS,
        capture=CaptureSettings(optimizer=model.optimizer),
        measurement=MeasurementSettings(steps=STEPS, parallel=1),
        store=StoreSettings("none"),
    )


def _check_same_ops(graph: CapturedGraph, problem: Problem) -> None:
    """Refuse a graph whose ops are not those that the workers run.

    Raises:
        MismatchError: Another number of ops, other phases or other placement units.
    """
    same = graph.num_ops == problem.num_ops and np.array_equal(
        graph.phase, problem.phase
    )
    if same:
        profile = MeasuredProfile(problem.kind_times[:, 0], problem.cluster, began="")
        units = profile_problem(graph, profile).unit_of
        same = np.array_equal(units, problem.unit_of)
    if not same:
        raise MismatchError(
            f"graph {graph.name!r}: its ops are not those of its model; build it anew"
        )


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _machine() -> dict[str, Any]:
    """Return what the machine is, without its name."""
    return {key: value for key, value in describe_machine().items() if key != "host"}


def _profile(folder: Path, name: str, problem: Problem) -> MeasuredProfile:
    """Keep the times of a problem's ops, to the nanosecond, and its cluster."""
    nanoseconds = np.rint(problem.kind_times[:, 0] / NANOSECOND).astype(np.int64)
    row = ProfileRow(
        graph=name,
        nanoseconds=nanoseconds.tolist(),
        cluster=cluster_to_data(problem.cluster),
        began=_text(datetime.now(UTC)),
    )
    _append(folder / PROFILES, row)
    return _make_profile(row, str(folder / PROFILES))


def _make_profile(row: ProfileRow, source: str) -> MeasuredProfile:
    return MeasuredProfile(
        time=NANOSECOND * np.array(row.nanoseconds, dtype=np.float64),
        cluster=cluster_from_data(row.cluster, source),
        began=row.began,
    )


def _append(path: Path, row: Schema) -> None:
    """Add a row to a file, which is written whole: a kill leaves no half of a line."""
    lines = read_text(path) if path.is_file() else ""
    write_text(path, lines + json.dumps(row.model_dump()) + "\n")


def _read_lines(path: Path, schema: type[R]) -> list[R]:
    """Return the rows of a file, none if it is not there.

    Raises:
        FormatError: A line is not such a row; the message names the line and the key.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        source = f"{path}: line {number}"
        try:
            rows.append(parse(schema, json.loads(line), source))
        except json.JSONDecodeError as error:
            raise FormatError(f"{source}: {error}") from None
    return rows


def _read_rows(folder: Path) -> list[PairRow]:
    return _read_lines(folder / ROWS, PairRow)


def _read_profiles(folder: Path) -> dict[str, MeasuredProfile]:
    path = folder / PROFILES
    rows = _read_lines(path, ProfileRow)
    return {row.graph: _make_profile(row, str(path)) for row in rows}


def read_pairs(folder: str | Path) -> dict[str, MeasuredGraph]:
    """Return the measured placements of a folder's graphs, by the graph's name.

    A graph whose ``PAIRS`` placements were not all run is left out.

    Raises:
        FormatError: A file cannot be read.
    """
    profiles = _read_profiles(Path(folder))
    by_graph: dict[str, list[PairRow]] = defaultdict(list)
    for row in _read_rows(Path(folder)):
        by_graph[row.graph].append(row)
    return {
        name: _measure_graph(profiles[name], rows)
        for name, rows in by_graph.items()
        if name in profiles and len(rows) == PAIRS
    }


def _measure_graph(profile: MeasuredProfile, rows: Sequence[PairRow]) -> MeasuredGraph:
    digits = [np.array(list(row.device), dtype=np.int32) for row in rows]
    return MeasuredGraph(
        profile=profile,
        placers=tuple(row.placer for row in rows),
        device=np.stack(digits, axis=1),
        step_time=np.array([row.step_time for row in rows]),
        measured=np.array([row.measured or np.nan for row in rows]),
        clocks=tuple(row.clock for row in rows),
    )
