from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import gnnplace

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
    with pytest.raises(AttributeError, match=f"module '{room}' has no attribute 'nothing'"):
        _ = package.nothing


def test_there_are_such_rooms():
    assert {"gnnplace", "gnnplace.placers", "gnnplace.simulation"} < set(ROOMS)
