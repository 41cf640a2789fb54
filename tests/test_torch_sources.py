"""What `make torch-names` says of a version, on sources of a few lines."""

from __future__ import annotations

from tests.torch_sources import Sources, compare, installed_sources, used_names

OLD = {
    "torch/__init__.py": "from torch._lib import *\n",
    "torch/_lib.py": """
if True:
    def run(fn, keep=True): ...
class Mode:
    def push(self): ...
""",
}
NEW = {
    "torch/__init__.py": "from . import _lib\nfrom ._lib import run as run\n",
    "torch/_lib.py": """
def run(fn, *, keep=True): ...
class Mode: ...
gone = 1
""",
}


def test_missing_names_and_other_arguments_are_told() -> None:
    names = ("run", "_lib.Mode", "_lib.Mode.push", "_lib.gone", "_C.unknown")
    report = compare(
        [f"torch.{name}" for name in names], Sources(OLD.get), Sources(NEW.get)
    )
    assert report.missing == ("torch._lib.Mode.push",)
    assert report.added == ("torch._lib.gone",)
    assert report.changed == ("torch.run: (fn, keep) is (fn, keep=)",)


def test_the_names_that_the_package_uses_are_in_the_installed_sources() -> None:
    """Three processor seconds: large files of torch are parsed."""
    names = used_names()
    assert "torch._subclasses.fake_tensor.FakeTensorMode" in names
    missing = [name for name in names if installed_sources().find(name) is None]
    assert len(missing) <= 4, missing
