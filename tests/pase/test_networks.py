from __future__ import annotations

import pytest

from benchmarks.pase.costs import Machine, Setting, sharding_problem
from benchmarks.pase.networks.registry import NETWORKS, build_network
from gnnplace.errors import InputError
from gnnplace.sharding import best_strategy

# Millions of parameters and GFLOP of one image's forward pass, as published (AlexNet without its
# groups: Krizhevsky, 2014; torchvision's tables for the others count multiply-adds as one).
PUBLISHED = {
    "alexnet": (62.4, 2.27),
    "densenet121": (7.98, 5.67),
    "inception_v3": (23.8, 11.4),
    "resnet101": (44.5, 15.6),
    "wide_resnet50": (68.9, 22.8),
}


def parameters_of(name):
    operations = [layer.operation for layer in build_network(name).layers]
    return sum(o.elements(axes) for o in operations for axes in o.parameters)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_published(name):
    layers = build_network(name).layers
    operations = [layer.operation for layer in layers]
    flops = sum(o.flops for o in operations) / 128
    assert parameters_of(name) / 1e6 == pytest.approx(PUBLISHED[name][0], rel=0.01)
    assert flops / 1e9 == pytest.approx(PUBLISHED[name][1], rel=0.02)


@pytest.mark.parametrize(("name", "parameters"), [("biglstm", 1.8e9), ("gpt", 355e6)])
def test_numbers_of_parameters_are_those_published(name, parameters):
    # Jozefowicz et al., 2016, table 1, LSTM-8192-1024; GPT-2 medium ties its classifier.
    tied = 1024 * 50_257 if name == "gpt" else 0
    assert parameters_of(name) - tied == pytest.approx(parameters, rel=0.02)


def test_experts_hold_almost_all_parameters_of_the_mixture():
    experts = 6 * 128 * 2 * 1024 * 8192
    assert experts < parameters_of("moe") < 1.03 * experts


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_read_earlier_layers_and_axes_fit(name):
    seen = {}
    for layer in build_network(name).layers:
        assert layer.name not in seen
        assert len(layer.inputs) == len(layer.operation.inputs)
        for source in layer.inputs:
            assert source is None or source in seen
        seen[layer.name] = layer
    producers = {source for layer in seen.values() for source in layer.inputs}
    assert [name for name in seen if name not in producers] == ["loss"]


@pytest.mark.parametrize("name", ["alexnet", "rnnlm", "transformer"])
def test_the_parts_add_up_and_data_parallelism_is_not_better(name):
    network = build_network(name)
    setting = Setting(network, 8, Machine())
    problem = sharding_problem(network, 8)
    result = best_strategy(problem)
    parts = setting.parts(result.configuration)
    assert parts.total == pytest.approx(result.cost)
    assert parts.memory == pytest.approx(result.memory)
    rival = setting.data_parallel()
    assert setting.parts(rival).total == pytest.approx(problem.value(rival))
    assert parts.total <= setting.parts(rival).total


def test_words():
    network = build_network("transformer")
    setting = Setting(network, 8, Machine())
    words = setting.words(setting.data_parallel())
    assert set(words) == {"batch over 8"}
    assert setting.words([0] * len(network.layers))[0] == "whole on every device"


def test_unknown_networks_are_named():
    with pytest.raises(InputError, match="alexnet"):
        build_network("alexnex")


@pytest.mark.parametrize("devices", [3, 6])
def test_device_counts_that_are_no_power_of_two(devices):
    network = build_network("alexnet")
    whole = best_strategy(sharding_problem(network, 1)).cost
    result = best_strategy(sharding_problem(network, devices))
    assert whole / devices <= result.cost < whole
