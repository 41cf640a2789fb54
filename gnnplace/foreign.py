"""Private names of other libraries: how they are looked up, what is said where one is missing.

Each library has a file of its own, such as `torch_names.py`; numba's is `graph/jit.py`. Nothing
else in the package imports a name that begins with ``_``, or a module that its library keeps for
itself. A library may move such a name in any release: it is then missed in one place, and the user
reads in one line which releases work (`VersionError`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from gnnplace.errors import MissingExtraError, VersionError
from gnnplace.lazy import lazy_names

WORKING_VERSIONS = {
    "lightning": ("2.5", "2.6.6"),
    "numba": ("0.62", "0.68.1"),
    "torch": ("2.12", "2.14.1"),
    "torch_geometric": ("2.6", "2.8.1"),
    "transformers": ("5.0", "5.23.0"),
}
"""First and last release of each library that the package was tried with."""
EXTRA_OF = {
    "torch": "torch",
    "torch_geometric": "train",
    "lightning": "train",
    "optuna": "train",
    "cmaes": "train",
    "tensorboard": "train",
    "ortools": "exact",
    "transformers": "hf",
    "matplotlib": "report",
}
"""The extra of the package that brings each library which planning does without."""


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise failed imports inside as errors that name the extra which installs the library.

    Raises:
        MissingExtraError: The library is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra = missing_extra(error)
        if extra is None:
            raise
        raise extra from error


def check_installed(*libraries: str) -> None:
    """Check, before the work, that libraries are there which an extra brings.

    Args:
        libraries: Their names, as they are imported.

    Raises:
        MissingExtraError: One is not installed; names the extra.
    """
    for library in libraries:
        with naming_extras():
            if find_spec(library) is None:
                message = f"No module named {library!r}"
                raise ModuleNotFoundError(message, name=library)


def missing_extra(error: BaseException) -> MissingExtraError | None:
    """Return what says which extra is missing; None of an error of any other kind.

    Args:
        error: The error that an import raised.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        return None
    return MissingExtraError(
        f"{library.replace('_', '-')} is not installed, and this needs it: "
        f"pip install 'gnnplace[{EXTRA_OF[library]}]'"
    )


def foreign_names(
    module: str, library: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module that lists names of a library.

    A name is looked up when it is first used, and kept. One that the installed release lacks raises
    a `VersionError`.

    Args:
        module: ``__name__`` of the module; it lists the names as `lazy_names` reads them.
        library: The library, as it is imported.
    """
    get_name, list_names = lazy_names(module)

    def get_or_explain(name: str) -> object:
        try:
            return get_name(name)
        except (ImportError, AttributeError) as error:
            if name not in list_names():
                raise  # Python's own error
            raise missing_name(library, str(error)) from error

    return get_or_explain, list_names


def read_private(owner: object, name: str, library: str) -> Any:  # noqa: ANN401 (the caller knows it)
    """Return a private attribute of a library's class, module or object.

    Raises:
        VersionError: The installed release has no such attribute.
    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise missing_name(library, str(error)) from error


def patch_private(
    owner: object, name: str, value: object, library: str
) -> AbstractContextManager[object]:
    """Return a context in which a private attribute of a library is another one.

    Raises:
        VersionError: The installed release has no such attribute.
    """
    if not hasattr(owner, name):
        raise missing_name(library, f"{owner!r} has no attribute {name!r}")
    return patch.object(owner, name, value)


def check_version(library: str, installed: str) -> None:
    """Check that a library is of a release that the package was tried with.

    Args:
        library: The library, as it is imported.
        installed: Its version, as it says itself.

    Raises:
        VersionError: It is an earlier or a later one.
    """
    first, last = WORKING_VERSIONS[library]
    number = release(installed)
    lowest = release(first)
    highest = release(last)
    if lowest <= number <= highest:
        return
    package = library.replace("_", "-")
    major, minor = highest
    below = f"{major}.{minor + 1}"
    raise VersionError(
        f"{package} {installed}: gnnplace was not tried with it, and its checks may not hold; "
        f"{first} to {last} works: pip install '{package}>={first},<{below}'"
    )


def release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, such as (2, 13) of "2.13.0+cpu"."""
    numbers = version.split(".")
    major = int(numbers[0])
    minor = int(numbers[1])
    return major, minor


def missing_name(library: str, reason: str) -> VersionError:
    """Return the error for a name that the installed release of a library lacks.

    Args:
        library: The library, as it is imported.
        reason: What Python said.
    """
    first, last = WORKING_VERSIONS[library]
    package = library.replace("_", "-")
    try:
        installed = version(package)
    except PackageNotFoundError:
        installed = "of an unknown version"
    return VersionError(
        f"{package} {installed} lacks what gnnplace needs of it ({reason}); {package} {first} to "
        f"{last} works: pip install '{package}>={first},<={last}'"
    )
