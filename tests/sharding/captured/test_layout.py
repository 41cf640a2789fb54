from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.sharding.captured.layout import (
    PARTIAL,
    REPLICATED,
    Place,
    Shape,
    SplitOp,
    count_layout_parts,
    count_parts,
    default_mesh,
    get_result_layout,
    gradient_layout,
    mesh_configurations,
    read_layout,
    settle_sums,
)
from tests.sharding.captured_graphs import batch_configuration

LINEAR = Shape(
    (("b", 8), ("in", 6), ("out", 4)),
    (("b", "in"), ("out", "in")),
    (("b", "out"),),
    1.0,
)


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [(1, (1,)), (2, (2,)), (4, (2, 2)), (6, (3, 2)), (7, (7,)), (64, (8, 8))],
)
def test_meshes_are_near_a_square(devices, mesh):
    assert default_mesh(devices) == mesh


def test_no_devices_are_refused():
    with pytest.raises(InputError, match="devices 0"):
        default_mesh(0)


def test_configurations_have_equal_parts():
    found = mesh_configurations(LINEAR, (2, 2))
    assert found[0] == (None, None)
    assert ("in", "in") not in found  # 6 cannot be cut into 4
    assert ("out", "out") in found
    assert len(found) == 15
    assert all(8 % count_parts(c, (2, 2)).get("b", 1) == 0 for c in found)


def test_layouts_of_a_row_parallel_product():
    split = ("in", "b")
    x, weight = LINEAR.reads
    assert read_layout(x, split) == (Place(1), Place(0))
    assert read_layout(weight, split) == (Place(1), REPLICATED)
    assert gradient_layout(weight, split) == (Place(1), PARTIAL)
    assert get_result_layout(LINEAR.results[0], split) == (PARTIAL, Place(0))
    assert settle_sums((PARTIAL, Place(0))) == (REPLICATED, Place(0))
    assert count_layout_parts((Place(1), Place(0)), (2, 3)) == 6


def test_data_parallelism_splits_the_batch_or_nothing():
    op = SplitOp("a", "linear", LINEAR, (), (), batch="b")
    assert mesh_configurations(LINEAR, (2, 2))[batch_configuration(op, (2, 2))] == (
        "b",
        "b",
    )
    assert batch_configuration(op, (3,)) == 0
    assert batch_configuration(SplitOp("a", "x", LINEAR, (), ()), (2, 2)) == 0
