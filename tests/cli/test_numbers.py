"""Every option that is a number has a range, which is checked before anything else is done."""

from __future__ import annotations

import pytest

from gnnplace.cli.commands import COMMANDS
from gnnplace.cli.main import command, make_parser, run
from gnnplace.cli.numbers import Range, list_ranges, size

PARSED = [name for name in COMMANDS if name != "train"]  # Lightning's own parser


def numeric_options(name):
    parser = make_parser(name)
    kinds = {
        action.option_strings[-1]: str(
            getattr(action, "_typehint", None) or action.type
        )
        for action in parser._actions
        if action.option_strings
    }
    words = ("int", "float", "bytes")
    numeric = {
        option for option, kind in kinds.items() if any(word in kind for word in words)
    }
    return numeric, list_ranges(parser)


def positionals(name):
    parser = make_parser(name)
    required = [a for a in parser._actions if a.required and a.option_strings]
    given = ["x" for a in parser._actions if not a.option_strings and a.nargs != "*"]
    return given + [text for a in required for text in (a.option_strings[-1], "x")]


@pytest.mark.parametrize("name", PARSED)
def test_every_number_has_a_range(name):
    numeric, ranges = numeric_options(name)
    assert numeric == set(ranges)


@pytest.mark.parametrize("name", PARSED)
def test_what_is_out_of_range_is_refused_before_any_work(name, monkeypatch, capsys):
    monkeypatch.setattr(
        command(name), "run", lambda args: pytest.fail("the work has begun")
    )
    for option, allowed in numeric_options(name)[1].items():
        wrong = ["-1"] if allowed.minimum is not None else ["0", "-1"]
        wrong += ["9" * 30] if allowed.maximum is not None else []
        wrong += ["nan", "inf"] if allowed.above is not None else []
        for value in wrong:
            assert run([name, *positionals(name), f"{option}={value}"]) == 2, (
                option,
                value,
            )
            told = capsys.readouterr().err
            assert told.count("\n") == 1
            assert option[2:] in told.replace("_", "-")


@pytest.mark.parametrize(
    ("allowed", "value", "fault"),
    [
        (Range(minimum=0), 0, None),
        (Range(minimum=0), -1, "must not be negative"),
        (Range(minimum=1), 0, "must be at least 1"),
        (Range(above=0), 0.0, "must be more than 0"),
        (Range(above=0), float("nan"), "must be a finite number"),
        (Range(maximum=4_294_967_295), 2**32, "must be at most 4294967295"),
    ],
)
def test_a_range(allowed, value, fault):
    assert allowed.fault(value) == fault


@pytest.mark.parametrize(
    ("text", "count"), [("16GB", 16e9), ("512MiB", 2.0**29), ("2e9", 2e9), (".5g", 5e8)]
)
def test_bytes_have_units(text, count):
    assert size(text) == count


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--budgets", "1,-1"),
        ("--budgets", "nan"),
        ("--seeds", "0,-3"),
        ("--part", "0/2"),
    ],
)
def test_lists_of_numbers_have_ranges_as_well(option, text, capsys):
    assert run(["bench", "suite.yaml", "-o", "x", f"{option}={text}"]) == 2
    assert option in capsys.readouterr().err
