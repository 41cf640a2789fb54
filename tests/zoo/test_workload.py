"""Workloads are built by name, at any size, the same every time."""

from __future__ import annotations

import inspect

import pytest
import torch

from gnnplace import zoo
from gnnplace.errors import InputError
from gnnplace.tracing.step import StepModule
from gnnplace.zoo.workload import WORKLOADS, find_factory


@pytest.mark.parametrize("name", zoo.list_workload_names())
def test_a_workload_has_a_finite_loss_and_a_gradient_for_every_parameter(
    name: str,
) -> None:
    work = zoo.build(name, batch=2)
    step = StepModule(work.model, work.loss, work.inputs)
    loss = step(*step.inputs())
    loss.backward()
    assert work.name == name
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in work.model.parameters())


@pytest.mark.parametrize("name", zoo.list_workload_names())
def test_the_batch_is_the_first_dimension_of_every_input(name: str) -> None:
    for batch in (2, 4):
        inputs = zoo.build(name, batch=batch).inputs
        tensors = inputs.values() if isinstance(inputs, dict) else inputs
        assert {t.shape[0] for t in tensors} == {batch}


def test_batches_can_be_cut_in_four() -> None:
    assert all(zoo.default_batch(name) % 4 == 0 for name in zoo.list_workload_names())


def test_same_arguments_same_numbers_and_the_generator_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    a, b, c = zoo.build("mlp"), zoo.build("mlp"), zoo.build("mlp", seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    heads = [w.model.head.weight for w in (a, b, c)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(a.inputs[0], b.inputs[0])


def test_every_factory_says_what_its_sizes_are() -> None:
    for name in WORKLOADS:
        factory = find_factory(name)
        text = inspect.getdoc(factory) or ""
        assert all(f"{p}:" in text for p in inspect.signature(factory).parameters), name


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="'nothing': no such workload; there are bert"):
        zoo.build("nothing")
    with pytest.raises(InputError, match="no size 'bach'; there are batch"):
        zoo.build("mlp", bach=3)
