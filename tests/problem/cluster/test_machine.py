"""The processor's name, where the kernel tells it and where it does not."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

import gnnplace
from gnnplace.problem.cluster import machine


def test_the_first_processor_names_the_machine(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\nmodel name\t: A CPU: fast\nmodel name\t: another\n"
    )
    monkeypatch.setattr(machine, "INFO", info)
    assert machine.processor_name() == "A CPU: fast"


def test_without_the_kernel_python_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "INFO", tmp_path / "none")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv")
    assert machine.processor_name() == "riscv"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert machine.processor_name() == "unknown"


def test_a_package_inside_of_another_repository_has_a_commit_of_its_own(tmp_path):
    """Its own files say what it is, and what they say changes with them."""
    package = tmp_path / "site" / "gnnplace"
    (package / "problem").mkdir(parents=True)
    for name in ("problem/problem.py", "problem/__init__.py", "__init__.py"):
        (package / name).write_text((Path(gnnplace.__file__).parent / name).read_text())
    git = ["git", "-C", str(tmp_path), "-c", "user.email=a@b", "-c", "user.name=n"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "mine"], check=True)
    first = machine._hash_files(package)
    (package / "problem/problem.py").write_text("x = 1\n")
    assert machine._hash_files(package) != first
    with pytest.raises(subprocess.CalledProcessError):
        machine._git(
            str(package / "problem"), "ls-files", "--error-unmatch", "problem.py"
        )
