"""How-to pages: their own commands, files and scripts run as they stand."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

from tests.cli.pages import DOCS, run_page

WHOLE = ("howto/pins.md", "howto/why.md")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mymodel", None)


@pytest.mark.parametrize("page", WHOLE)
def test_the_pages_run_as_they_stand(page, tmp_path, capsys):
    """Every command and every Python block; what a page shows as refused is refused so."""
    assert run_page(page, tmp_path, capsys)


def test_five_tasks(tmp_path, capsys):
    """From a model to a training loop; the two GPUs of the map are the CPU here."""

    def load():
        found = json.loads((tmp_path / "map.json").read_text())
        assert {*found.values()} == {0, 1}
        here = dict.fromkeys(found, "cpu")
        (tmp_path / "map.json").write_text(json.dumps(here))
        runpy.run_path("load.py", run_name="__main__")

    done = run_page("howto/five-tasks.md", tmp_path, capsys, {"python load.py": load})
    assert len(done) == 6
    losses = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert losses[-1] < losses[0]


@pytest.mark.campaign
def test_accelerate(tmp_path, capsys):
    """The map has the modules that the page shows; what is refused is refused so."""
    assert run_page("howto/accelerate.md", tmp_path, capsys)
    shown = (
        (DOCS / "howto/accelerate.md").read_text().split("```json\n")[1].split("```")[0]
    )
    assert (
        json.loads((tmp_path / "map.json").read_text()).keys()
        == json.loads(shown).keys()
    )
