"""The page of a hybrid study has the recommendation, every split and where figures come from."""

from __future__ import annotations

from gnnplace.cli.main import run
from gnnplace.plans.hybrid.advice import advise, hours, sentence
from gnnplace.plans.hybrid.study import HybridStudy
from gnnplace.report.hybrid_page import hybrid_page
from tests.plans.hybrid.test_advice import ROWS, row


def test_the_page_has_every_split() -> None:
    """One row each, also for what does not fit."""
    rows = [*ROWS, row(32, 1, None)]
    origin = {"step": "predicted", "all_reduce": "predicted", "examples": "given", "epochs": "x"}
    study = HybridStudy("a <model>", "a <model>", 16, rows, advise(rows), origin)
    text = hybrid_page(study)
    assert text.count("<tr><td>") == len(rows)
    assert sentence(study.advice, 16) in text
    assert "a &lt;model&gt; on up to 16 devices" in text
    assert "too large" in text
    assert "<svg" in text
    assert study.advice.best is not None
    assert hours(study.advice.best.seconds) in text


def test_a_run_has_no_page(tmp_path, capsys) -> None:
    """One line, before the work."""
    arguments = ["hybrid", "mlp", "--cluster", "cpu:2", "--execute"]
    assert run([*arguments, "--html", str(tmp_path / "x.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
