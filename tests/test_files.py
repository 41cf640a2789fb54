"""Files are written whole or not at all; links are followed, devices are written to in place."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from typing import Literal

import pytest
from pydantic import Field

from gnnplace.errors import FormatError, InputError, join_faults
from gnnplace.files import (
    Bytes,
    Schema,
    find_descriptor,
    is_written_in_place,
    parse,
    parse_json,
    parse_yaml,
    write_arrays,
    write_json,
    write_text,
)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.json"
    for value in (1, [2] * 1000):
        write_json(path, value)
        assert json.loads(path.read_text()) == value
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_fault_while_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, "old")
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, float("nan"))
    assert json.loads(path.read_text()) == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "real"
    link.symlink_to(target)  # leads to nothing yet
    for text in ("one", "two"):
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert os.listdir(tmp_path / "there") == ["real"]


def test_devices_stay_devices():
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(
        InputError, match=r"/dev/full: cannot be written: No space left on device"
    ):
        write_text("/dev/full", "no room")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_named_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    write_arrays(pipe, {"x": [1, 2, 3]})
    assert reader.communicate(timeout=20)[0].startswith(b"PK")
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_stdout_goes_on_from_where_it_stands(tmp_path):
    code = "from gnnplace.files import write_text; print(1); write_text('/dev/stdout', '2\\n')"
    with (tmp_path / "out").open("w") as out:
        subprocess.run(
            [sys.executable, "-c", f"{code}; print(3)"], stdout=out, check=True
        )
    assert (tmp_path / "out").read_text() == "1\n2\n3\n"


@pytest.mark.parametrize(
    ("path", "number"),
    [("/dev/stdout", 1), ("/dev/fd/7", 7), ("/proc/self/fd/2", 2), ("out.json", None)],
)
def test_paths_of_descriptors(path, number):
    assert find_descriptor(path) == number


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """The kernel refuses to let files grow beyond a limit, as it does on a full disk."""
    path = tmp_path / "a.json"
    write_json(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            InputError, match=r"a\.json: cannot be written: File too large"
        ):
            write_json(path, "new" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert json.loads(path.read_text()) == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_what_is_written_in_place(tmp_path):
    assert is_written_in_place("/dev/null")
    assert not is_written_in_place(tmp_path / "nothing")


class Filled(Schema):
    """A file of every kind of value."""

    count: int = Field(default=1, ge=1)
    size: Bytes = 0.0
    names: list[str] = Field(default=["a"], min_length=1)
    kind: Literal["train", "test"] = "train"
    on: bool = True


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "top level: must be keys and values"),
        ({"count": "four"}, "count: must be a whole number"),
        ({"count": 1.5}, "count: must be a whole number"),
        ({"count": 0}, "count: must be at least 1"),
        ({"size": 1e300}, "size: must be at most 1e+30"),
        ({"size": []}, "size: must be a number"),
        ({"names": []}, "names: must have 1 entries or more, and has 0"),
        ({"names": {}}, "names: must be a list"),
        ({"names": [None]}, "names[0]: must be a text"),
        ({"kind": "fly"}, "kind: must be 'train' or 'test'"),
        ({"on": 1}, "on: must be true or false"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_who_writes_the_file(given, told):
    with pytest.raises(FormatError) as caught:
        parse(Filled, given, "f")
    assert str(caught.value) == f"f: {told}"


def test_faults_that_differ_by_their_place_alone_are_one_line():
    faults = [f"ops[{i}].time: too large" for i in range(3)] + ["ops[1].name: no text"]
    error = join_faults(FormatError, faults, "p.json")
    assert error.faults == (
        "p.json: ops[0].time: too large (so have 2 more)",
        "p.json: ops[1].name: no text",
    )
    assert (
        str(join_faults(FormatError, faults[:3]))
        == "ops[0].time: too large (so have 2 more)"
    )


class Either(Schema):
    """A key that may be written in several ways, in a list."""

    parts: list[str | list[str] | int]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"parts": [1.5]},
            "parts[0]: must be a text, or must be a list, or must be a whole number",
        ),
        ({"parts": [["a", 2]]}, "parts[0][1]: must be a text"),
        (
            {"parts": [], "str": 1},
            "str: unknown key (keys of your own must begin with 'x-')",
        ),
        ({}, "parts: required key is missing"),
    ],
)
def test_key_paths_are_those_of_the_file_where_a_value_may_be_of_several_kinds(
    data, said
):
    with pytest.raises(FormatError) as told:
        parse(Either, data, "file")
    assert str(told.value) == f"file: {said}"


def test_long_yaml_is_read_as_json_and_deep_yaml_is_one_line():
    """The loader of libyaml ends the process where parts are a hundred thousand deep."""
    wide = {"names": ["a" * 99] * 20_000}
    assert parse_yaml(json.dumps(wide), "file") == wide
    with pytest.raises(
        FormatError, match="has 2 MB; YAML is read up to 1 MB: write it as JSON"
    ):
        parse_yaml("a: 1\n" * 400_000, "file")
    for deep in ("[" * 100_000, "a: {" * 100_000, "- " * 100_000):
        with pytest.raises(FormatError, match="nested too deeply"):
            parse_yaml(deep, "file")


REPEATED = {
    "a: 1\nb: 2\na: 3\n": "lines 1 and 3: key 'a' is repeated",
    "x:\n  - {a: 1, a: 2}\n": "line 2: key 'a' is repeated",
    "x: {a: 1}\ny: {a: 1}\nlist: [a, a]\n": None,
    "x: &one {a: 1}\ny:\n  <<: *one\n  a: 2\n": None,
    "'a': 1\na: 3\n": "lines 1 and 2: key 'a' is repeated",
}


@pytest.mark.parametrize("text", REPEATED)
def test_a_yaml_key_that_stands_twice_is_refused_with_both_lines(text):
    if REPEATED[text] is None:
        assert parse_yaml(text, "f") is not None
        return
    with pytest.raises(FormatError, match=REPEATED[text]):
        parse_yaml(text, "f")


def test_a_json_key_that_stands_twice_is_refused_with_both_lines():
    with pytest.raises(FormatError, match="f: lines 2 and 4: key 'a' is repeated"):
        parse_json('{\n"a": 1,\n"b": {"a": 2},\n"a": 3}', "f")
