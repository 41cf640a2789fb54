"""The published data set: what a split says is what the graphs and the simulator say."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from torch_geometric.loader import DataLoader

from gnnplace.errors import FormatError
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.problem.placement import Placement
from gnnplace.simulation import simulate
from gnnplace.train.data.captured import open_shipped_store
from gnnplace.train.data.datasets import dataset_problem, verify
from gnnplace.train.data.graph_dataset import GraphDataset
from gnnplace.train.data.release import PAIRS, ReleaseStore, build_release

RELEASED = Path(__file__).parents[3] / "data_sets" / "release"
NAMES = ("mlp-small", "two-tower-small", "bert-mini")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release of three small graphs of two splits."""
    folder = tmp_path_factory.mktemp("few")
    few = folder / "data_sets" / "few"
    few.mkdir(parents=True)
    for name in NAMES:
        shutil.copy(open_shipped_store().folder / f"{name}.npz", few)
    assert (
        build_release(folder / "release", ["few"], start=folder) == len(NAMES) * PAIRS
    )
    return folder / "release"


def test_a_split_has_its_graphs_as_they_were_captured(release):
    store = ReleaseStore(release / "train.npz")
    assert store.names == ("mlp-small", "two-tower-small")
    for name in store.names:
        graph, original = store.graph(name), open_shipped_store().graph(name)
        assert graph.origin["family"] == original.origin["family"]
        assert np.array_equal(graph.work, original.work)
        assert np.array_equal(graph.unit, original.unit)
        for one, other in zip(graph.graph.edges, original.graph.edges, strict=True):
            assert np.array_equal(one, other)


def test_a_pairs_step_time_is_what_the_simulator_says_of_its_devices(release):
    store = ReleaseStore(release / "test.npz")
    (name,) = store.names
    problem = dataset_problem(
        store.graph(name), make_preset(store.cluster[name]), groups=None
    )
    devices, seconds = store.device[name].T, store.step_time[name]
    assert len({device.tobytes() for device in devices}) == PAIRS
    assert [
        simulate(problem, Placement(device)).step_time for device in devices
    ] == list(seconds)
    assert np.isnan(store.measured[name]).all()


def test_a_split_is_a_data_set_of_pyg_in_one_line(release, tmp_path):
    train = GraphDataset(str(release / "train.npz"), tmp_path)
    assert len(train) == 2
    assert train[0].placement.shape == (train[0].x.shape[0], PAIRS)
    assert train[0].step_time.shape == (1, PAIRS)
    batch = next(iter(DataLoader(train, batch_size=2)))
    assert batch.placement.shape == (sum(len(data.x) for data in train), PAIRS)
    assert batch.step_time.shape == (2, PAIRS)


def test_what_is_no_split_is_refused(tmp_path):
    (tmp_path / "bad.npz").write_text("no archive")
    with pytest.raises(FormatError, match="not a split"):
        ReleaseStore(tmp_path / "bad.npz")
    with pytest.raises(FormatError, match="not a gnnplace-release"):
        ReleaseStore(open_shipped_store().folder / "mlp-small.npz")


@pytest.mark.skipif(not RELEASED.is_dir(), reason="a wheel has no release")
def test_the_release_is_as_large_and_as_disjoint_as_it_says():
    assert verify(RELEASED) == 3
    with (RELEASED / "pairs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 2_000
    assert len({row["graph"] for row in rows}) >= 250
    measured = [row for row in rows if row["measured_s"]]
    assert len(measured) >= 200
    assert {row["cluster"] for row in measured} == {"cpu:2"}
    assert {row["clock"] for row in measured} <= {"wall", "virtual"}
    families: dict[str, set[str]] = {}
    for row in rows:
        families.setdefault(row["split"], set()).add(row["family"])
    assert not families["train"] & families["test"]
    assert not families["validation"] & (families["train"] | families["test"])
    assert sum(path.stat().st_size for path in RELEASED.iterdir()) < 100e6


@pytest.mark.parametrize(
    "path", sorted(RELEASED.parent.glob("*/croissant.json")), ids=str
)
def test_descriptions_are_what_croissant_asks_for(path):
    data = json.loads(path.read_text())
    collected = path.parent.name in ("pipedream", "dnn-partitioning")
    licence = (
        "opensource.org/license/mit"
        if collected
        else "creativecommons.org/licenses/by/4.0/"
    )
    assert data["license"] == f"https://{licence}"
    assert {key for key in data if key.startswith("rai:")} >= {
        "rai:dataCollection",
        "rai:dataLimitations",
        "rai:dataUseCases",
        "rai:personalSensitiveInformation",
    }
    croissant = pytest.importorskip("mlcroissant")
    dataset = croissant.Dataset(jsonld=path)
    assert not dataset.metadata.ctx.issues.errors
