from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.sharding import best_strategy
from gnnplace.sharding.captured_placements import placement_problem
from gnnplace.splitting.tables.costs import MeshMachine
from gnnplace.splitting.tables.layout import PARTIAL, REPLICATED
from gnnplace.tracing.layer_placements import placed_step
from gnnplace.tracing.loading import load
from gnnplace.tracing.step import StepModule

R, P = REPLICATED, PARTIAL


@pytest.fixture(scope="module")
def perceptron():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    step = StepModule(model, functional.mse_loss, (torch.ones(8, 16), torch.ones(8, 16)))
    return placed_step(step, "perceptron", 2)


def op_of(step, start):
    return next(op for op in step.ops if op.name.startswith(start))


def test_rules_of_a_product_are_dtensors(perceptron):
    rules = set(op_of(perceptron, "mm").rules)
    assert {(R, R, R), (P, 1, 0), (0, 0, R), (1, R, 1)} <= rules
    assert op_of(perceptron, "mm").rules[0] == (R, R, R)


def test_rules_of_functions_over_specs(perceptron):
    rules = set(op_of(perceptron, "t").rules)
    assert {(R, R), (1, 0), (0, 1)} <= rules


def test_parameters_and_gradients_are_paired(perceptron):
    assert sum(op.state for op in perceptron.ops) == 4
    assert len(perceptron.gradients) == 4
    for gradient, parameter in perceptron.gradients:
        assert perceptron.values[gradient].shape == perceptron.values[parameter].shape


def test_places_are_axes_of_their_tensors(perceptron):
    for op in perceptron.ops:
        for rule in op.rules:
            assert len(rule) == len(op.results) + len(op.reads)
            for place, value in zip(rule, (*op.results, *op.reads), strict=True):
                assert place < len(perceptron.values[value].shape)


def test_the_same_search_solves_it(perceptron):
    machine = MeshMachine(flops=1e6, bandwidth=1e6)
    problem = placement_problem(perceptron, (2,), machine)
    best = best_strategy(problem)
    whole = problem.value((0,) * len(problem.names))
    assert best.exact
    assert best.cost < 0.8 * whole
    assert best.cost >= 0.5 * whole


def test_attention_of_cpus_is_split_along_batch_and_heads():
    workload = load("bert?layers=1&width=64&heads=4&vocabulary=64")
    step = StepModule(workload.model, workload.loss, workload.inputs)
    placed = placed_step(step, "bert", 2)
    assert len(op_of(placed, "_scaled_dot_product_flash").rules) == 3
