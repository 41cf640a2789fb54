"""Epochs by batch: the model, tables, files, presets and published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnplace import zoo
from gnnplace.errors import FormatError, InputError
from gnnplace.plans.hybrid.convergence import (
    FAMILIES,
    PRESETS,
    PUBLISHED,
    CriticalBatch,
    EpochTable,
    find_preset,
    find_published_gain,
    read_epochs,
)


def test_the_critical_batch_doubles_the_epochs() -> None:
    """And steps and examples keep the paper's hyperbola."""
    model = CriticalBatch(least_epochs=10.0, critical_batch=1000.0)
    assert model.epochs(1000) == 20.0
    assert model.epochs(1e-9) == pytest.approx(10.0)
    for batch in (10.0, 300.0, 9000.0):
        examples = model.epochs(batch)  # in epochs; steps follow
        steps, least_steps = examples / batch, 10.0 / 1000.0
        assert (steps / least_steps - 1) * (examples / 10.0 - 1) == pytest.approx(1.0)


def test_tables_are_linear_in_the_logarithm() -> None:
    """Constant below, unknown above."""
    table = EpochTable(((100.0, 10.0), (400.0, 20.0)))
    assert table.epochs(200) == pytest.approx(15.0)
    assert table.epochs(50) == 10.0
    assert table.epochs(400) == 20.0
    assert table.epochs(401) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "# ours\nbatch, epochs\n400, 20\n100, 10\n"),
        ("t.yaml", "400: 20\n100: 10\n"),
        ("t.yml", "- {batch: 100, epochs: 10}\n- {batch: 400, epochs: 20}\n"),
    ],
)
def test_files_of_all_kinds(tmp_path: Path, name: str, text: str) -> None:
    """In any order of rows."""
    (tmp_path / name).write_text(text)
    assert read_epochs(tmp_path / name).rows == ((100.0, 10.0), (400.0, 20.0))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,b\n1,2\n"),
        ("t.csv", "batch,epochs\n1,many\n"),
        ("t.csv", "batch,epochs\n"),
        ("t.csv", "batch,epochs\n1,-2\n"),
        ("t.csv", "batch,epochs\n1,2\n1,3\n"),
        ("t.yaml", "just text"),
        ("t.yaml", "- {batch: 1}\n"),
        ("t.yaml", "a: [\n"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    """One line, with the file."""
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=name) as caught:
        read_epochs(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_parameters_must_be_positive() -> None:
    """Named."""
    with pytest.raises(InputError, match="critical_batch"):
        CriticalBatch(10.0, 0.0)


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("inception?batch=4", "images"),
        ("zoo:gnmt", "translation"),
        ("rnn_lm", "language"),
        ("big_lstm?batch=128", "language"),
        ("mine:model", "any"),
    ],
)
def test_models_have_their_family(model: str, family: str) -> None:
    """By name, whatever stands around it."""
    assert find_preset(model) is PRESETS[family]


def test_every_preset_says_where_it_comes_from() -> None:
    """A source, or "assumed"."""
    for preset in PRESETS.values():
        assert preset.examples_source
        assert "assumed" in preset.convergence.source


def test_published_gains_stand_beside_models_that_exist() -> None:
    """Three, as the abstract has them."""
    assert {row.model: row.gain for row in PUBLISHED} == {
        "Inception-V3": 0.265,
        "GNMT": 0.08,
        "BigLSTM": 0.22,
    }
    assert all(
        any(name in zoo.list_workload_names() for name in row.ours) for row in PUBLISHED
    )
    assert find_published_gain("inception?batch=4") is PUBLISHED[0]
    assert find_published_gain("mlp") is None
    assert set(FAMILIES) < set(PRESETS)
