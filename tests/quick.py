"""``make quick``: at every save, the tests nearest to what changed; below a minute, always.

What changed is what differs from the branch ``main``, with files that git does not know yet; where
nothing does, what the last commit changed. The linter looks at these files. Then tests run, nearest
first: test files that changed, that import a module that changed, and those of its mirrored folder;
after them, while there is time, whole files that take little. What took how long is known from the
last ``make test`` (``pytest --keep-durations``); tests of a second and more are left out then. In a
fresh clone nothing is known, and short files are taken for quick ones. Tests that run alone and the
campaign are left out. What time did not reach is counted among the skipped; it is no failure.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / ".pytest_cache" / "durations.json"
CHEAP = 0.8  # seconds of a whole file that runs whatever changed
WORK = 20.0  # seconds of tests that are chosen, of two processes; as much again goes into start-up
# Seconds after which no further test begins; after which all is ended.
STOP, KILL = (38.0, 58.0)
GUESS = 4e-4  # seconds a character of a test file that has not been timed


def changed_files() -> list[str]:
    """Files that differ from ``main`` or are new; else those of the last commit."""
    base = _git("merge-base", "HEAD", "main") or _git("rev-parse", "HEAD")
    names = {
        *_git("diff", "--name-only", base).split(),
        *_git("ls-files", "-o", "--exclude-standard").split(),
    }
    names = names or set(_git("diff", "--name-only", "HEAD~1", "HEAD").split())
    return sorted(name for name in names if (ROOT / name).is_file())


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def imported(source: str) -> set[str]:
    """Dotted names that a source imports, and the modules that they are in."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {
                node.module,
                *(f"{node.module}.{alias.name}" for alias in node.names),
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def nearest(changed: list[str], tests: dict[str, str]) -> list[str]:
    """Test files by how near they are to what changed; those that are not are left out.

    Args:
        changed: paths of files.
        tests: the source of every test file by its path.
    """
    sources = [name for name in changed if name.endswith(".py")]
    modules = {
        name[:-3].replace("/", ".").removesuffix(".__init__") for name in sources
    }
    inside = [name for name in sources if name.startswith("gnnplace/")]
    rooms = {str(Path("tests", *Path(name).parts[1:-1])) for name in inside}
    own = [name for name in tests if name in changed]
    using = [name for name, source in tests.items() if modules & imported(source)]
    mirrored = [name for name in tests if str(Path(name).parent) in rooms - {"tests"}]
    return list(dict.fromkeys([*own, *using, *mirrored]))


def chosen(near: list[str], seconds: dict[str, float], work: float = WORK) -> list[str]:
    """Test files to run: near ones as long as they fit, then cheap ones.

    Args:
        near: test files, the nearest first.
        seconds: what the quick tests of every file took, or may take.
        work: seconds that there are.
    """
    cheap = sorted(
        (name for name in seconds if seconds[name] <= CHEAP), key=seconds.__getitem__
    )
    result = []
    for name in dict.fromkeys([*near, *cheap]):
        took = seconds[name]
        if took <= work:
            work -= took
            result.append(name)
    return result


def seconds_of(tests: dict[str, str], known: dict[str, Any]) -> dict[str, float]:
    """Seconds of the quick tests of every file: as timed, else by its length."""
    return {
        name: known[name]["seconds"] if name in known else len(source) * GUESS
        for name, source in tests.items()
    }


def run(files: list[str], slow: list[str], began: float) -> int:
    """Runs the tests of files in two processes and ends them in time; pytest's exit code."""
    left = [f"--deselect={name}" for name in slow if name.partition("::")[0] in files]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "-m",
        "not alone and not campaign",
    ]
    command += [f"--until={began + STOP}", *left, *files]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(began + KILL - time.time())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            print("quick: a test did not end in time", file=sys.stderr)
            return 1


def main() -> int:
    """Lints what changed, then runs the tests nearest to it; 0 where nothing failed."""
    began = time.time()
    changed = changed_files()
    python = [name for name in changed if name.endswith(".py")]
    for words in (("check", "-q"), ("format", "--check", "-q")) if python else ():
        if subprocess.run(
            [sys.executable, "-m", "ruff", *words, *python], cwd=ROOT
        ).returncode:
            return 1
    known = (
        json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    )
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    tests = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths
    }
    slow = [f"{name}::{test}" for name in known for test in known[name].get("slow", ())]
    files = chosen(nearest(changed, tests), seconds_of(tests, known))
    return run(files, slow, began)


if __name__ == "__main__":
    sys.exit(main())
