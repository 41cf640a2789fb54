from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import gnnplace
from gnnplace.lazy import _imports_under_if

PACKAGE = Path(gnnplace.__file__).parent
ROOMS = sorted(
    path.parent.relative_to(PACKAGE.parent).as_posix().replace("/", ".")
    for path in PACKAGE.rglob("__init__.py")
    if "lazy_names(" in path.read_text()
)


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_is_there(room):
    package = import_module(room)
    for name in dir(package):
        assert getattr(package, name, None) is not None or name.startswith("__")
    with pytest.raises(
        AttributeError, match=f"module '{room}' has no attribute 'nothing'"
    ):
        _ = package.nothing


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_of_a_room_is_that_of_a_file_in_it(room):
    """To import the file would put it in the place of the name."""
    folder = PACKAGE.parent / room.replace(".", "/")
    places = _imports_under_if(folder / "__init__.py")
    files = {path.stem for path in folder.iterdir()}
    assert not {
        name for name, (module, _) in places.items() if name in files and module != room
    }


def test_there_are_such_rooms():
    assert {"gnnplace", "gnnplace.placers", "gnnplace.simulation"} < set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_that_lists_its_names_lists_all(room):
    package = import_module(room)
    listed = vars(package).get("__all__")
    assert listed is None or set(listed) == set(
        _imports_under_if(Path(package.__file__))
    )
