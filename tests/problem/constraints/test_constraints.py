"""Constraints as they are given: words, mappings, files, and what is refused."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.problem.constraints import (
    Constraints,
    ConstraintWords,
    as_constraints,
    read_constraints,
)
from gnnplace.problem.constraints.constraints import ConstraintRule


def test_words_and_files_say_the_same(tmp_path):
    """Flags, a mapping and a YAML file make equal constraints, and so does what they write."""
    path = tmp_path / "my.yaml"
    path.write_text(
        "pin: {'encoder.*': 'gpu:0', head: [gpu:0, gpu:1]}\nforbid: {embed: gpu:1}\n"
        "together: [[embed, head]]\nheadroom: 10%\nmax_devices: 2\n"
        "by_module: true\nno_split: [Block]\nmax_memory: {0: 10GiB, 'gpu:1': 2000000000}\n"
    )
    words = ConstraintWords(
        pin=["encoder.*=gpu:0", "head=gpu:0,gpu:1"],
        forbid=["embed=gpu:1"],
        together=["embed,head"],
        headroom="10%",
        max_devices=2,
        by_module=True,
        no_split=["Block"],
        max_memory=["0=10GiB", "gpu:1=2e9"],
    ).constraints()
    assert words.max_memory == (("0", 10 * 2**30), ("gpu:1", 2e9))
    assert read_constraints(path) == words == as_constraints(words.to_data())
    assert words.pin[1] == ConstraintRule("head", ("gpu:0", "gpu:1"))
    assert not Constraints()


def test_flags_add_to_a_file(tmp_path):
    """Rules are added; a number on the command line wins."""
    path = tmp_path / "my.yaml"
    path.write_text("pin: {a: d0}\nmax_devices: 4\n")
    both = ConstraintWords(pin=["b=d1"], max_devices=2).constraints(path)
    assert [str(rule) for rule in both.pin] == ["a=d0", "b=d1"]
    assert both.max_devices == 2


@pytest.mark.parametrize("word", ["a", "=d0", "a=", "a= , "])
def test_a_word_that_is_no_rule_is_refused(word):
    """The error shows what a rule looks like."""
    with pytest.raises(InputError, match="PATTERN=DEVICE"):
        ConstraintWords(pin=[word]).constraints()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pins: {a: d0}", "pins: unknown key"),
        ("max_devices: 0", "max_devices"),
        ("headroom: lots", "headroom 'lots'"),
        ("pin: [a]", "pin"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path, text, told):
    """One line that names the key."""
    path = tmp_path / "my.yaml"
    path.write_text(text)
    with pytest.raises((FormatError, InputError), match=told):
        read_constraints(path)
