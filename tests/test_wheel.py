"""The built wheel, in an environment that has its base packages and nothing else."""

from __future__ import annotations

import subprocess
import sys
from email import message_from_string
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from gnnplace.foreign import EXTRA_OF

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from gnnplace.cli.main import run
code = run(sys.argv[1:])
print(code, sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)))
"""


def installed_names(requirements: list[str], folder: Path) -> set[str]:
    """Link what requirements need, and what that needs, into a folder. Return the libraries."""
    waiting = [Requirement(text) for text in requirements]
    linked: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in linked:
                continue
            linked.add((requirement.name, extra))
            library = distribution(requirement.name)
            waiting += needed(library.requires or [], extra)
            for file in library.files or []:
                target = folder / file.parts[0]
                if file.parts[0] != ".." and not target.exists():
                    target.symlink_to(Path(str(library.locate_file(file.parts[0]))))
    return {name.lower() for name, _ in linked}


def needed(requirements: list[str], extra: str = "") -> list[Requirement]:
    """Return the requirements that hold here and, if an extra is named, those of it."""
    parsed = [Requirement(text) for text in requirements]
    return [
        one
        for one in parsed
        if one.marker is None or one.marker.evaluate({"extra": extra})
    ]


def test_the_wheel_plans_a_known_model_with_its_base_packages(tmp_path):
    """Six processor seconds: the wheel is built once, and a fresh install compiles its kernels."""
    pytest.importorskip("hatchling")
    built, site = tmp_path / "built", tmp_path / "site"
    subprocess.run([sys.executable, "-c", BUILD, built], cwd=ROOT, check=True)
    with ZipFile(next(built.glob("gnnplace-*.whl"))) as wheel:
        wheel.extractall(site)
    metadata = next(site.glob("*.dist-info/METADATA")).read_text("utf-8")
    declared = message_from_string(metadata).get_all("Requires-Dist") or []
    base = [str(requirement) for requirement in needed(declared)]
    assert len(base) == 14
    names = installed_names(base, site)
    assert not {name.replace("-", "_") for name in names} & set(EXTRA_OF)

    # Isolated, and without the folders of installed packages: nothing but the linked ones is there.
    question = [
        "plan",
        "Qwen/Qwen3-8B",
        "--cluster",
        "8xH100",
        "--launcher",
        "megatron-lm",
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", RUN, site, *question],
        cwd=tmp_path,
        env={"GNNPLACE_STORE": "none"},
        capture_output=True,
        text=True,
        check=True,
    )
    code, _, imported = done.stdout.strip().splitlines()[-1].partition(" ")
    assert code == "0", done.stderr
    assert "8,190,735,360 parameters" in done.stdout
    assert "torch" not in imported
