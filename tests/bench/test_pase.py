"""Splits of whole steps: the elimination against brute force, recipes, and what cannot be."""

import itertools

import pytest

from gnnplace.bench.pase import PASE, TRICK, WholeStep, split_step
from gnnplace.errors import InfeasibleError
from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.segments.chains import capture_chain, move_chain_to_cluster
from gnnplace.plans.segments.splits import ShardMachine
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.sharding import best_strategy
from gnnplace.sharding.captured.problem import (
    build_captured_tables,
    complete_strategy,
    price_captured_parts,
)

CLUSTER = make_preset("nvlink-a100-2")


@pytest.fixture(scope="module")
def chain():
    """Wide enough for kernels to take longer than their launches; a second to capture."""
    return capture_chain(TrainingJob("mlp?batch=8192&width=2048&depth=2"), CLUSTER)


def step_of(chain, cluster):
    machine = ShardMachine(
        fabric=MeshFabric(cluster), place=Mesh(0, 1, cluster.num_devices)
    )
    mesh = (cluster.num_devices,)
    operations = chain.source.layers.operations
    return WholeStep(operations, mesh, machine, source=chain.source, kind="a100")


def test_the_elimination_finds_what_trying_all_splits_finds():
    step = step_of(
        capture_chain(TrainingJob("mlp?batch=8192&width=2048&depth=1"), CLUSTER),
        CLUSTER,
    )
    chosen = best_strategy(build_captured_tables(step)).configuration
    found = price_captured_parts(step, chosen).total
    every = (
        complete_strategy(step, split) for split in itertools.product(*step.options)
    )
    assert found == pytest.approx(
        min(price_captured_parts(step, one).total for one in every)
    )


def test_examples_on_every_device_take_what_the_planner_says_of_data_parallelism(chain):
    """Beside the planner's: the best split is not worse, but for a latency each parameter."""
    data = price_given_plan(
        chain, CLUSTER, "dp=2,tp=1,pp=1,microbatch_size=4096"
    ).step_time
    seconds, held = split_step(chain, CLUSTER, PASE)
    elements = 3 * 2048 * 2048  # about: two layers and a head
    assert 0.5 * data < seconds <= data * 1.02
    assert held > 4 * elements


def test_the_trick_cuts_outputs_of_connected_layers_and_images_of_all_else():
    chain = capture_chain(TrainingJob("small_resnet?batch=8"), CLUSTER)
    step = step_of(chain, CLUSTER)
    calls, trick = chain.source.layers.calls.calls, step.trick()
    for call, op, options, k in zip(
        calls, step.graph.ops, step.options, trick, strict=False
    ):
        if call.kind == "linear":
            assert options[k][0] == op.shape.results[0][-1] != op.batch
        elif "conv" in call.kind:
            assert options[k][0] == op.batch
    assert (
        split_step(chain, CLUSTER, PASE)[0]
        <= split_step(chain, CLUSTER, TRICK)[0] * 1.02
    )


def test_what_cannot_be_is_refused(chain):
    with pytest.raises(InfeasibleError, match="networks with convolutions"):
        split_step(chain, CLUSTER, TRICK)
    mixed = make_preset("mixed-a100-t4-4")
    with pytest.raises(InfeasibleError, match="devices of one kind"):
        split_step(move_chain_to_cluster(chain, mixed), mixed, PASE)
