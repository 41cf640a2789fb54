from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest

from gnnplace.graph.orders import FIXED_ORDERS
from gnnplace.policy.gnn.network import read_gnn
from gnnplace.train.cli import main
from gnnplace.train.training_cli import TrainingCLI

TRAINERS = Path(__file__).parents[2] / "trainers"
RECIPES = sorted([*TRAINERS.glob("*.yaml"), *TRAINERS.glob("gnn/*.yaml")])
OVERLAYS = sorted((TRAINERS / "orders").glob("*.yaml"))


def build(*recipes: Path) -> TrainingCLI:
    return TrainingCLI(
        [f"--config={path}" for path in recipes], run=False, save_config=False
    )


def test_the_shipped_policy_came_from_a_validation_that_fell():
    with open(TRAINERS / "default.log.csv", newline="") as file:
        ratios = [float(row["val/ratio"]) for row in csv.DictReader(file)]
    assert len(ratios) > 5
    untrained, best = ratios[0], min(ratios)
    assert best < untrained - 0.005
    assert sorted(ratios)[len(ratios) // 2] < untrained


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_build_and_keep_all_in_one_folder(recipe):
    cli = build(recipe)
    root = Path(cli.trainer.default_root_dir)
    assert [type(logger).__name__ for logger in cli.trainer.loggers] == [
        "CSVLogger",
        "TensorBoardLogger",
    ]
    folders = [logger.save_dir for logger in cli.trainer.loggers]
    folders += [callback.dirpath for callback in cli.trainer.checkpoint_callbacks]
    assert all(
        Path(folder).is_relative_to(root.resolve()) for folder in map(_resolve, folders)
    )
    assert _resolve(cli.model.export).is_relative_to(root.resolve())
    assert cli.trainer.num_sanity_val_steps == float("inf")


def _resolve(folder: str) -> Path:
    return Path(folder).resolve()


def test_the_default_recipe_stops_early_and_saves_by_epochs_and_by_time():
    trainer = build(TRAINERS / "default.yaml").trainer
    assert [callback.monitor for callback in trainer.early_stopping_callbacks] == [
        "val/ratio"
    ]
    timed = [callback._train_time_interval for callback in trainer.checkpoint_callbacks]
    assert sorted(interval is None for interval in timed) == [False, True]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_an_order_goes_on_top_of_any_recipe_in_a_folder_of_its_own(overlay):
    cli = build(TRAINERS / "default.yaml", overlay)
    assert cli.model.orders == (overlay.stem,)
    assert overlay.stem in FIXED_ORDERS
    assert Path(cli.trainer.default_root_dir) == Path("runs/orders", overlay.stem)
    assert Path(cli.model.export).is_relative_to(cli.trainer.default_root_dir)


def test_there_is_a_recipe_for_each_order_asked_for():
    asked = "topological reverse-topological breadth-first depth-first-pre depth-first-post "
    asked += "lexicographic upward-rank random"
    assert {path.stem for path in OVERLAYS} >= set(asked.split())


def ratios(folder):
    with open(next(Path(folder).rglob("metrics.csv")), newline="") as file:
        return [
            float(row["val/ratio"]) for row in csv.DictReader(file) if row["val/ratio"]
        ]


def test_the_smoke_recipe_learns_outside_of_a_checkout(tmp_path, monkeypatch):
    """The whole recipe, twelve seconds: five epochs from random weights, as users run it.

    Seeds are the recipe's, so that figures are the same each time: 1.96 before, 1.24 behind.
    """
    monkeypatch.chdir(tmp_path)
    more = (
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
    )
    main(
        [
            "validate",
            "--config=trainers/smoke.yaml",
            "--trainer.default_root_dir=before",
            *more,
        ]
    )
    main(["fit", "--config", "trainers/smoke.yaml", *more])
    [before], [start, *learned] = ratios("before"), ratios("runs/smoke")
    assert start == pytest.approx(before, rel=1e-6)
    assert len(learned) == 5
    assert read_gnn(Path("runs/smoke/policy")).encoder.layers
    assert learned[-1] < 0.8 * before


def test_every_recipe_is_in_the_wheel():
    build = tomllib.loads((TRAINERS.parent / "pyproject.toml").read_text())["tool"][
        "hatch"
    ]
    included = build["build"]["targets"]["wheel"]["force-include"]
    recipes = {
        name: inside for name, inside in included.items() if name.startswith("trainers")
    }
    assert all(
        inside == outside.replace("trainers", "gnnplace/train/recipes", 1)
        for outside, inside in recipes.items()
    )
    for path in TRAINERS.rglob("*.yaml"):
        named = path.relative_to(TRAINERS.parent)
        assert {str(named), str(named.parent)} & set(included), named
