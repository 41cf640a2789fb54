"""The folder of a study."""

from __future__ import annotations

import pytest

from benchmarks.studies.orders.folder import rows_of_folder
from gnnplace.errors import InputError


def test_a_folder_is_made_and_has_no_rows_yet(tmp_path):
    assert rows_of_folder(tmp_path / "deep" / "study", "rows.jsonl") == []
    assert (tmp_path / "deep" / "study").is_dir()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "study").write_text("")
    with pytest.raises(InputError, match="study folder"):
        rows_of_folder(tmp_path / "study", "rows.jsonl")
