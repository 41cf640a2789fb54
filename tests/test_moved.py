"""Old names of modules and commands are told the new ones, in one line."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

import gnnplace
from gnnplace.cli.main import RETIRED, run
from gnnplace.moved import new_name

HOME = Path(gnnplace.__file__).parent
ROWS = json.loads(Path(gnnplace.__file__).with_name("moved.json").read_text())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gnnplace.splitting.rules.attention", "gnnplace.tracing.rules.attention"),
        ("gnnplace.devicemap.units", "gnnplace.costs.profiling.grouping"),
        ("gnnplace.pipelines.plans", "gnnplace.plans.plans"),
        ("gnnplace.data.recipes", "gnnplace.train.data.recipes"),
        ("gnnplace.studies.orders.study", "python -m benchmarks.studies"),
        ("gnnplace.api", "every verb is a function of gnnplace itself"),
    ],
)
def test_an_import_by_an_old_name_is_told_the_new_one(old, new):
    with pytest.raises(ModuleNotFoundError, match=new) as caught:
        import_module(old)
    assert "\n" not in str(caught.value)


def test_what_never_was_is_not_told_anything():
    assert new_name("gnnplace.no_such_room") is None
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        import_module("gnnplace.no_such_room")


def test_what_an_old_folder_is_asked_for_is_told_the_new_one():
    with pytest.raises(
        ImportError,
        match=r"gnnplace\.cluster\.preset has moved: gnnplace\.problem\.cluster\.preset",
    ):
        from gnnplace.cluster import preset  # noqa: F401


def test_every_new_name_is_there_and_no_old_one():
    for old, new in ROWS.items():
        where = HOME.joinpath(*new.split("."))
        assert " " in new or where.is_dir() or where.with_suffix(".py").is_file(), f"{old}: {new}"
        assert not (HOME.joinpath(*old.rstrip(".").split(".")).with_suffix(".py")).exists()


def test_a_recipe_with_an_old_class_path_is_told_the_new_one(tmp_path, capsys):
    recipe = tmp_path / "old.yaml"
    recipe.write_text("model:\n  class_path: gnnplace.data.recipes.Recipe\n")
    assert run(["train", "fit", "--config", str(recipe)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "gnnplace.data.recipes has moved: gnnplace.train.data.recipes" in line


@pytest.mark.parametrize("name", RETIRED)
def test_a_command_that_is_gone_says_what_to_use(name, capsys):
    assert run([*name.split(), "mlp"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert RETIRED[name] in line
