"""The upload of a release: a draft with every file, refused without a token or with other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.upload import HOST, main, metadata, upload
from gnnplace.errors import FormatError

RELEASED = Path(__file__).parents[3] / "data_sets" / "release"


def test_a_draft_gets_every_file_and_says_its_licence():
    requests = []

    def answer(request):
        requests.append(request)
        links = {"bucket": f"{HOST}/bucket", "html": f"{HOST}/draft/1"}
        return {"links": links, "metadata": {"prereserve_doi": {"doi": "10.0/1"}}}

    assert "10.0/1" in upload(RELEASED, "secret", HOST, answer)
    first, *files = requests
    assert json.loads(first.data)["metadata"] == metadata(RELEASED)
    assert metadata(RELEASED)["license"] == "cc-by-4.0"
    assert [r.full_url.rpartition("/")[2] for r in files] == sorted(
        path.name for path in RELEASED.iterdir()
    )
    assert {r.get_header("Authorization") for r in requests} == {"Bearer secret"}


def test_it_refuses_without_a_token_and_with_changed_files(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("ZENODO_TOKEN", raising=False)
    assert main([str(RELEASED)]) == 2
    assert "ZENODO_TOKEN: is not set" in capsys.readouterr().err
    shutil.copytree(RELEASED, tmp_path / "release")
    with (tmp_path / "release" / "test.npz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(FormatError, match="changed"):
        upload(tmp_path / "release", "secret", HOST)
