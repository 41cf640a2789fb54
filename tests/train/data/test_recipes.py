from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.train.data.captured import MORE_SPLIT, SPLIT
from gnnplace.train.data.recipes import (
    COUNTS,
    EACH,
    FAMILIES,
    RECIPES,
    draw_sizes,
    recipe,
)
from gnnplace.zoo.workload import WORKLOADS


def test_recipes_have_no_name_twice_and_a_part_for_every_family():
    models = [model for one in RECIPES.values() for model in one.models]
    assert len({model.name for model in models}) == len(models)
    assert len({(model.spec, model.optimizer) for model in models}) == len(models)
    assert {model.family for model in models} == {*SPLIT, *MORE_SPLIT}
    assert not SPLIT.keys() & MORE_SPLIT.keys()


def test_there_are_thirty_models_of_ten_families_and_three_sampled_families():
    networks = [m for name in ("store", "networks") for m in RECIPES[name].models]
    assert len(networks) >= 30
    assert len({model.family for model in networks}) >= 10
    for name in ("searched-cnn", "searched-rnn", "nmt"):
        assert len(recipe(name).models) == EACH >= 30


def test_unknown_recipes_are_named():
    with pytest.raises(
        InputError, match="recipe 'soup': unknown; recipes: store, networks"
    ):
        recipe("soup")


def test_every_family_has_sizes_and_a_model():
    assert COUNTS.keys() == FAMILIES.keys() <= WORKLOADS.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_those_of_the_name(family):
    drawn = {draw_sizes(family, f"name {i}") for i in range(20)}
    assert draw_sizes(family, "name 3") in drawn
    assert len(drawn) > 4
    assert all(sizes.startswith("batch=") for sizes in drawn)
