"""What `make quick` chooses, and that it ends in time."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from tests.quick import ROOT, chosen, nearest, seconds_of

TESTS = {
    "tests/a/test_one.py": "from gnnplace.a.one import thing\n",
    "tests/a/test_two.py": "import gnnplace.a.two\n",
    "tests/b/test_far.py": "from gnnplace.a import one\n",
    "tests/c/test_own.py": "import os\n",
    "tests/c/test_other.py": "import os\n",
}


def test_own_then_using_then_mirrored_test_files():
    changed = ["gnnplace/a/one.py", "tests/c/test_own.py", "README.md"]
    assert nearest(changed, TESTS) == [
        "tests/c/test_own.py",
        "tests/a/test_one.py",
        "tests/b/test_far.py",
        "tests/a/test_two.py",
    ]


def test_near_files_come_first_and_cheap_ones_fill_the_time():
    seconds = {"near": 5.0, "long": 30.0, "cheap": 0.5, "cheaper": 0.1, "dear": 3.0}
    assert chosen(["long", "near"], seconds, 40.0) == [
        "long",
        "near",
        "cheaper",
        "cheap",
    ]
    assert chosen(["long", "near"], seconds, 6.0) == ["near", "cheaper", "cheap"]


def test_short_files_are_taken_for_quick_where_none_was_timed():
    seconds = seconds_of(
        {"long": 10_000 * "x", "short": 1_000 * "x"}, {"timed": {"seconds": 1.0}}
    )
    assert seconds == {"long": pytest.approx(4.0), "short": pytest.approx(0.4)}
    assert seconds_of({"timed": "x"}, {"timed": {"seconds": 7.0}}) == {"timed": 7.0}


def test_no_test_begins_behind_the_time():
    command = [sys.executable, "-m", "pytest", "-n", "0", f"--until={time.time() - 1}"]
    done = subprocess.run(
        [*command, "tests/test_house.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert re.fullmatch(r"\d+ skipped in .*", done.stdout.strip().splitlines()[-1])
