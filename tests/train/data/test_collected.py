"""Data sets that are copied from a clone of their authors' repository."""

from __future__ import annotations

import json
import shutil

import pytest

from gnnplace.bench.suite import read_suite, suite_path
from gnnplace.errors import FormatError, InputError
from gnnplace.train.data import collected
from gnnplace.train.data.collected import collect_data, how_to_collect
from gnnplace.train.data.croissant import FILE, DataSetCard, write_croissant
from gnnplace.train.data.datasets import SHIPPED_FOLDERS, SUMS, verify, write_sums

SETS = ("pipedream", "dnn-partitioning")
ADDRESS = "https://raw.githubusercontent.com/owner/name/0123abc/nets/small/graph.txt"


@pytest.fixture
def clone(tmp_path):
    """A clone with one file of a set `tiny`, whose description is shipped without the file."""
    path = tmp_path / "clone" / "nets" / "small" / "graph.txt"
    path.parent.mkdir(parents=True)
    path.write_text("node1 -- Linear\n")
    described = tmp_path / "shipped" / "tiny"
    described.mkdir(parents=True)
    shutil.copy(path, described / "small.txt")
    card = DataSetCard(
        name="tiny",
        description="One file.",
        collection="By hand.",
        limitations="One file.",
        use_cases="This test.",
        url="https://github.com/owner/name",
        addresses={"small.txt": ADDRESS},
    )
    write_sums(described, ["small.txt"])
    write_croissant(described, [described / "small.txt"], card)
    (described / "small.txt").unlink()
    return tmp_path / "clone"


@pytest.fixture(autouse=True)
def shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(
        collected, "SHIPPED_FOLDERS", (tmp_path / "shipped", *SHIPPED_FOLDERS)
    )


def test_files_are_copied_with_their_sums(clone, tmp_path):
    target = tmp_path / "data_sets" / "tiny"
    assert collect_data(target, clone) == 1
    assert (target / "small.txt").read_text() == "node1 -- Linear\n"
    assert {path.name for path in target.iterdir()} == {"small.txt", FILE, SUMS}
    (target / "small.txt").write_text("node1 -- Conv\n")
    with pytest.raises(FormatError, match=r"small\.txt: changed"):
        verify(target)
    (target / "small.txt").unlink()
    with pytest.raises(
        FormatError, match=r"small\.txt: missing; .* collect FOLDER --from CLONE"
    ):
        verify(target)


def test_another_clone_or_another_file_is_refused(clone, tmp_path):
    target = tmp_path / "tiny"
    with pytest.raises(
        FormatError, match=r"no file nets/small/graph\.txt; is it the right clone"
    ):
        collect_data(target, tmp_path)
    (clone / "nets" / "small" / "graph.txt").write_text("node1 -- Conv\n")
    with pytest.raises(FormatError, match="not the file that"):
        collect_data(target, clone)


@pytest.mark.parametrize("name", ["doppler", "nothing"])
def test_sets_that_come_with_the_package_are_not_collected(name, tmp_path):
    assert how_to_collect(tmp_path / name) is None
    with pytest.raises(InputError, match="names no set that is collected"):
        collect_data(tmp_path / name, tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_a_suite_has_every_file_of_its_set_and_says_how_to_get_one(
    name, tmp_path, monkeypatch
):
    path = suite_path(name)
    assert path is not None
    problems = read_suite(path).problems
    described = json.loads((SHIPPED_FOLDERS[0] / name / FILE).read_text())[
        "distribution"
    ]
    assert [f"data_sets/{name}/{entry['name']}" for entry in described] == [
        problem.profile for problem in problems
    ]
    (tmp_path / "nets").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gnnplace.bench.suite.SHIPPED_FOLDERS", (tmp_path / "nets",))
    with pytest.raises(
        InputError, match=rf"git clone https://\S+/{name} CLONE, then gnnplace"
    ):
        problems[0].load(tmp_path)
