from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from gnnplace.errors import FormatError, InputError
from gnnplace.train.sweep_space import (
    first_values,
    full_key,
    parse_values,
    read_space,
    suggest,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..4", IntDistribution(1, 4)),
        ("8..64:log", IntDistribution(8, 64, log=True)),
        ("0..0.5", FloatDistribution(0.0, 0.5)),
        ("1.0e-4..1e-2:log", FloatDistribution(1e-4, 1e-2, log=True)),
        ("-3..-1", IntDistribution(-3, -1)),
        ("a|b c", CategoricalDistribution(["a", "b c"])),
        ("[1, 2]|[3]", CategoricalDistribution(["[1, 2]", "[3]"])),
    ],
)
def test_values_are_read_as_they_are_meant(text, expected):
    assert parse_values("key", text) == expected


@pytest.mark.parametrize(
    "text", ["", "3", "4..1", "0..1:log", "a..b", "1..inf", "a||b", "1..2:lin"]
)
def test_values_that_are_none_are_refused_by_key(text):
    with pytest.raises(InputError, match=r"some\.key"):
        parse_values("some.key", text)


def test_arguments_win_over_the_file_and_short_keys_are_spelled_out(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("model.init_args.hidden: 8|16\ndata.seed: 0..3\n")
    space = read_space(str(path), ["model.hidden=32|64"])
    assert first_values(space) == {"model.init_args.hidden": "32", "data.init_args.seed": "0"}
    assert full_key("trainer.max_epochs") == "trainer.max_epochs"
    assert full_key("model.class_path") == "model.class_path"


@pytest.mark.parametrize("text", ["", "- a\n", "a: 3\n", "a: [1\n"])
def test_a_file_that_is_no_space_is_named(tmp_path, text):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"space\.yaml"):
        read_space(str(path), [])


def test_nothing_to_vary_is_an_error():
    with pytest.raises(InputError, match="--set"):
        read_space(None, [])
    with pytest.raises(InputError, match="KEY=VALUES"):
        read_space(None, ["model.hidden"])


def test_other_choices_than_the_study_has_are_refused():
    study = optuna.create_study()
    suggest(study.ask(), "a", parse_values("a", "x|y"))
    with pytest.raises(InputError, match="--study"):
        suggest(study.ask(), "a", parse_values("a", "x|z"))


def test_the_spaces_that_come_along_are_read():
    spaces = sorted((Path(__file__).parents[2] / "trainers" / "sweeps").glob("*.yaml"))
    assert spaces
    for path in spaces:
        assert len(read_space(str(path), [])) > 2
