from __future__ import annotations

import pytest

from gnnplace.costs.frameworks.constants import (
    assumed,
    environment_names,
    framework,
    framework_names,
)
from gnnplace.errors import InputError


def test_every_constant_has_an_owner_a_unit_and_a_source():
    for name in framework_names():
        found = list(assumed(name, environment_names()[0]))
        assert [c for c in found if not (c.unit and c.source and c.owner)] == []
        assert {c.owner for c in found} == {
            "hardware",
            "library",
            "any framework",
            f"framework {name}",
            f"environment {environment_names()[0]}",
            *(f"mode {name}" for name in ("compile=on", "cuda_graphs=layers",
                                          "cuda_graphs=iteration")),
        }  # fmt: skip


def test_frameworks_have_constants_of_the_same_names():
    names = {name: set(framework(name).constants) for name in framework_names()}
    assert names["nanotron"] - names["pytorch"] == {
        "card_gather",
        "card_reduce",
        "ring_latency",
        "tree_latency",
    }
    assert all(names["pytorch"] <= own for own in names.values())


def test_an_unknown_framework_is_named_with_those_that_are_known():
    with pytest.raises(InputError, match="'nanotorn': unknown; use one of pytorch, nanotron"):
        framework("nanotorn")
