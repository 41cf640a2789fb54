"""Features by name: places follow the source, compiled or not."""

import inspect

import numpy as np
import pytest

from gnnplace.graph.jit import inner, kernel
from gnnplace.policy import weights
from gnnplace.policy.decode import kernels
from gnnplace.policy.naming import (
    NamedRow,
    compute_version,
    list_feature_names,
    name_columns,
)
from gnnplace.policy.refine import refining


@name_columns("row")
def plain(row: NamedRow, value: float) -> int:
    """Three features, one of them twice."""
    row["first"] = value
    row["second"] = 2.0 * row["first"]
    row["third"] = 0.0
    if value > 1.0:
        row["third"] = row["second"] + 1.0
    row[3] = -1.0
    return len(row)


compiled = kernel(plain)


@pytest.mark.parametrize("function", [plain, compiled])
def test_a_name_is_the_place_of_its_first_appearance(function):
    row = np.zeros(4)
    assert function(row, 3.0) == 4
    assert row.tolist() == [3.0, 6.0, 7.0, -1.0]
    assert list_feature_names(function) == ("first", "second", "third")


def test_faults_are_reported_at_the_line_of_the_source():
    with pytest.raises(TypeError) as caught:
        plain(np.zeros(4), None)
    lines, first = inspect.getsourcelines(plain)
    line = caught.traceback[-1].lineno + 1
    assert "if value > 1.0" in lines[line - first]


def test_another_name_and_another_place_are_another_version():
    names = (("a", "b"), ("c",))
    others = [(("b", "a"), ("c",)), (("a",), ("b", "c")), (("a", "b", "d"), ("c",))]
    assert (
        len({compute_version(*names), *(compute_version(*other) for other in others)})
        == 4
    )


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (kernels.observe, kernels.DYNAMIC),
        (refining.observe, refining.REFINING),
        (weights._write_global, weights.GLOBAL),
    ],
)
def test_no_kernel_has_numbers_or_a_name_twice(function, names):
    source = inspect.getsource(getattr(function, "py_func", function))
    assert list_feature_names(function) == names
    assert len(set(names)) == len(names)
    assert all(source.count(f'["{name}"]') >= 1 for name in names)


def test_inner_kernels_may_have_names():
    made = inner()(plain)
    row = np.zeros(4)
    made(row, 0.5)
    assert row.tolist() == [0.5, 1.0, 0.0, -1.0]
