"""Malformed files of every format: one line that says what is wrong, and never a traceback.

Hypothesis draws how a valid file is changed: keys, types, numbers, lengths and order of its tree,
then encodings, tokens and nesting of its text, then its bytes. What is read all the same is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnplace.errors import GnnplaceError
from tests.campaign.formats import FORMATS, Format

SLICE, ALL = 20, 525  # changed files of each format
SIZES = [
    pytest.param(SLICE, id="slice"),
    pytest.param(ALL, id="all", marks=pytest.mark.campaign),
]


def fault_of(form: Format, path: Path) -> str:
    """What is said of a file; empty if it is valid all the same."""
    try:
        form.read(path)
    except GnnplaceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_malformed_file_is_one_line(
    form: Format,
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counted: Callable[[str, int], None],
) -> None:
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path / "cache"))
    path = form.prepare(tmp_path)
    valid = path.read_bytes()
    form.read(path)  # it is one
    done = []

    @settings(
        max_examples=size,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**62))
    def changed(seed: int) -> None:
        path.write_bytes(form.change(valid, Random(seed)))
        done.append(seed)
        assert "Traceback" not in fault_of(form, path)

    changed()
    counted(f"malformed files: {form.name}", len(done))
