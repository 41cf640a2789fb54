from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnnplace.costs.frameworks import constants
from gnnplace.costs.frameworks.constants import (
    iterate_constants,
    load_framework_constants,
)
from gnnplace.errors import InputError

DATA = json.loads(Path(constants.__file__).with_name("constants.json").read_text())
FRAMEWORKS, [ENVIRONMENT, *_] = tuple(DATA["frameworks"]), DATA["environments"]


def test_every_constant_has_an_owner_a_unit_and_a_source():
    for name in FRAMEWORKS:
        found = list(iterate_constants(name, ENVIRONMENT))
        assert [c for c in found if not (c.unit and c.source and c.owner)] == []
        assert {c.owner for c in found} == {
            "hardware",
            "library",
            "any framework",
            f"framework {name}",
            f"environment {ENVIRONMENT}",
            *(f"mode {name}" for name in ("compile=on", "cuda_graphs=layers",
                                          "cuda_graphs=iteration")),
        }  # fmt: skip


def test_frameworks_have_constants_of_the_same_names():
    names = {name: set(load_framework_constants(name).constants) for name in FRAMEWORKS}
    assert names["nanotron"] - names["pytorch"] == {
        "card_gather",
        "card_reduce",
        "ring_latency",
        "tree_latency",
    }
    assert all(names["pytorch"] <= own for own in names.values())


def test_an_unknown_framework_is_named_with_those_that_are_known():
    with pytest.raises(
        InputError, match="'nanotorn': unknown; use one of pytorch, nanotron"
    ):
        load_framework_constants("nanotorn")
