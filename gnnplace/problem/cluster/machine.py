"""What this machine is: processor, cores, memory, system; versions and commit of the code."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

INFO = Path("/proc/cpuinfo")
PACKAGES = ("gnnplace", "torch", "numpy", "numba")


def processor_name() -> str:
    """Return the kernel's name of the processor (proc(5)); else Python's, or "unknown"."""
    try:
        lines = INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    if names:
        return names[0]
    return platform.processor() or platform.machine() or "unknown"


@cache
def describe_machine() -> dict[str, Any]:
    """Return host name, system, processor, usable cores and bytes of memory."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def list_versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of packages, ``none`` for one that is not installed."""
    return {"python": platform.python_version()} | {
        name: _version(name) for name in packages
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def package_commit() -> str:
    """Return the commit of this package's code, with ``+`` if it was changed since.

    In a checkout it is git's. An installed package may stand inside of somebody else's repository,
    whose commit says nothing of it: there it is the commit that pip installed (PEP 610), else
    ``files:`` and the hash of the package's own files.
    """
    module = Path(__file__)
    folder = str(module.parent)
    try:
        _git(folder, "ls-files", "--error-unmatch", module.name)
        status = _git(
            folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no"
        )
    except (OSError, subprocess.CalledProcessError):
        return _read_installed_commit() or f"files:{_hash_files(module.parents[2])}"
    lines = status.splitlines()
    commit = next(line.split()[-1] for line in lines if line.startswith("# branch.oid"))
    is_changed = any(not line.startswith("#") for line in lines)
    return commit + ("+" if is_changed else "")


def _git(folder: str, *arguments: str) -> str:
    command = ["git", "-C", folder, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.strip()


def _read_installed_commit() -> str | None:
    """Return the commit that pip wrote down when it installed from a repository."""
    try:
        text = distribution("gnnplace").read_text("direct_url.json")
        return json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (PackageNotFoundError, ValueError):
        return None


def _hash_files(package: Path) -> str:
    """Return a hash of the names and the text of a package's modules."""
    hashed = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        hashed.update(path.relative_to(package).as_posix().encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:12]
