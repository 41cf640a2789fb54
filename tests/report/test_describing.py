"""Every result that a command prints is described by its type."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import gnnplace
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.placers import contract
from gnnplace.placers.throughput import ThroughputResult
from gnnplace.placing.roster import place
from gnnplace.report import (
    Answer,
    Comparison,
    as_json,
    as_page,
    as_terminal,
    describe,
    write_answer,
)
from gnnplace.report.answer import Lines
from gnnplace.report.describing import DESCRIBERS, find_describer

PACKAGE = Path(gnnplace.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def find_class_modules(name: str) -> list[str]:
    """Return the modules of the package that define a class."""
    modules = []
    for path, tree in TREES.items():
        if any(isinstance(x, ast.ClassDef) and x.name == name for x in tree.body):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            modules.append(".".join(parts).removesuffix(".__init__"))
    return modules


@pytest.mark.parametrize("name", sorted(DESCRIBERS))
def test_a_row_names_one_class_and_the_function_that_takes_it(name):
    [module] = find_class_modules(name)
    describer = find_describer(getattr(import_module(module), name))
    first, *options = inspect.signature(describer).parameters.values()
    alias = {"Run": "PlanRun"}.get(first.annotation, first.annotation)
    assert alias == name
    assert all(option.kind is option.KEYWORD_ONLY for option in options)


def test_every_describing_function_has_a_row():
    """A new answer cannot be forgotten in the table."""
    written = set()
    for path, tree in TREES.items():
        if path.parent.name != "report" or path.stem == "describing":
            continue
        for node in tree.body:
            is_describer = isinstance(node, ast.FunctionDef) and (
                node.name.startswith("describe_") and node.args.args
            )
            if is_describer and len(node.args.args) == 1:
                written.add(f"{path.stem}:{node.name}")
    assert written == set(DESCRIBERS.values())


def test_commands_give_options_that_a_description_has():
    """An option is passed through by name, which no type checker sees."""
    options: set[str] = set()
    for row in DESCRIBERS.values():
        module, _, name = row.partition(":")
        describer = getattr(import_module(f"gnnplace.report.{module}"), name)
        options |= set(list(inspect.signature(describer).parameters)[1:])
    calls = []
    for path, tree in TREES.items():
        if path.parent.name == "cli":
            calls += [
                node
                for node in ast.walk(tree)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "describe"
            ]
    assert len(calls) > 20
    assert {keyword.arg for call in calls for keyword in call.keywords} <= options


def test_commands_take_few_names_from_the_report():
    """An answer is reached by ``describe``, not by a function of its own."""
    names = set()
    for path, tree in TREES.items():
        if path.parent.name != "cli":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "gnnplace.report":
                names |= {alias.name for alias in node.names}
    assert len(names) <= 16, sorted(names)


def test_an_unknown_type_says_what_to_add():
    with pytest.raises(InputError, match="nothing describes a dict; add its row"):
        describe({})

    class Resultat:
        pass

    with pytest.raises(InputError, match="did you mean 'Result'"):
        describe(Resultat())


def test_a_subclass_is_described_as_its_class():
    assert find_describer(ThroughputResult) is find_describer(gnnplace.Result)


@pytest.fixture(scope="module")
def compared() -> Answer:
    problem = contract.branches()
    results = [
        place(problem, placer="heft"),
        place(problem, placer="single"),
        ("exact", InfeasibleError("no room")),
    ]
    return describe(Comparison(problem, results))


def test_one_description_is_printed_and_written(compared, tmp_path):
    assert [row["placer"] for row in as_json(compared)["rows"]] == [
        "heft",
        "single",
        "exact",
    ]
    assert any("lower bound" in str(part) for part in as_terminal(compared))
    page = tmp_path / "page.html"
    trace = tmp_path / "trace.json"
    write_answer(compared, page=page, trace=trace, chakra=tmp_path / "chakra")
    assert page.read_text() == as_page(compared)
    assert '"predicted, heft"' in trace.read_text()
    assert (tmp_path / "chakra" / "rank.0.json").is_file()


def test_a_view_that_an_answer_lacks_is_refused(compared, tmp_path):
    with pytest.raises(InputError, match="has no table"):
        write_answer(compared, table=tmp_path / "table.md")
    with pytest.raises(InputError, match="has no picture"):
        write_answer(compared, picture=tmp_path / "picture.svg")


def test_lines_and_data_are_made_once_they_are_read():
    def fail():
        raise AssertionError

    assert as_json(Answer("t", [Lines(fail)], lambda: [{"a": float("inf")}])) == [
        {"a": None}
    ]
    assert list(as_terminal(Answer("t", [Lines(lambda: ["one"])], fail))) == ["one"]
