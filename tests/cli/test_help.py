"""The help lists what there is to choose from."""

from __future__ import annotations

import pytest

from gnnplace import zoo
from gnnplace.cli.main import run
from gnnplace.cli.options import ZOO
from gnnplace.graph.orders import FIXED_ORDERS
from gnnplace.placing.roster import placer_names
from gnnplace.problem.cluster import preset_names
from gnnplace.problem.formats import READERS


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The words of a command's help; argparse breaks names at dashes."""
    with pytest.raises(SystemExit) as left:
        run([command, "--help"])
    assert left.value.code == 0
    return "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("place", [*placer_names(), *preset_names(), *ZOO, *FIXED_ORDERS]),
        ("compare", [*placer_names(), *preset_names(), *ZOO]),
        ("plan", [*preset_names(), *ZOO]),
        ("shard", ZOO),
        ("convert", list(READERS)),
    ],
)
def test_every_choice_is_listed(
    command: str, choices: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = helped(command, capsys)
    assert [name for name in choices if name not in told] == []


def test_the_zoo_of_the_help_is_the_zoo() -> None:
    assert zoo.list_workload_names() == ZOO


def test_train_says_what_it_can_without_importing_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["train", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("fit", "validate", "test", "predict", "sweep"))
