from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import gnnplace
from gnnplace.errors import InputError, UnsupportedError
from gnnplace.placers import contract
from gnnplace.problem.cluster import Cluster, make_preset


def test_a_module_of_ones_own_goes_the_whole_way():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    inputs = (torch.randn(6, 8),)
    options = gnnplace.CaptureOptions(microbatches=3, optimizer="adamw")
    program = gnnplace.capture(model, inputs, options=options)
    problem = gnnplace.profile(program, make_preset("nvlink-a100-2"), options=options)
    assert problem.microbatches == 3
    assert problem.estimated.all()
    result = gnnplace.place(problem, placer="round-robin", budget=0.0)
    run = gnnplace.execute(
        program,
        problem,
        result.placement,
        options=options,
        run=gnnplace.ExecutionOptions(steps=2),
    )
    assert run.execution.mode == "emulated"
    assert run.verification.passed, run.verification.summary()


def test_a_batch_that_cannot_be_cut_is_named():
    model = nn.Linear(4, 2)
    with pytest.raises(InputError, match="5 cannot be cut into 2"):
        gnnplace.capture(
            model, (torch.randn(5, 4),), options=gnnplace.CaptureOptions(microbatches=2)
        )


def test_models_for_devices_that_are_not_here_are_never_allocated():
    problem = gnnplace.profile("mlp", "nvlink-a100-2")
    assert problem.estimated.all()
    assert problem.times.min() >= 0


def test_the_same_model_gives_the_same_problem():
    first, second = (gnnplace.profile("mlp", "nvlink-a100-2") for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert first.members == second.members


def test_compare_keeps_those_that_cannot():
    problem = contract.lone_op()
    results = gnnplace.compare(problem, ["single", "min-cut"], budget=0.0)
    assert results[0].placer == "single"
    assert results[1][0] == "min-cut"
    assert isinstance(results[1][1], UnsupportedError)


def test_compare_names_a_result_as_its_placer_was_named():
    names = ["exact?workers=1", "exact"]
    results = gnnplace.compare(contract.training_chain(), names, budget=0.0)
    assert [result.placer for result in results] == names
    assert {result.placement.placer for result in results} == {"exact"}


def test_a_problem_moves_to_a_cluster_it_has_times_for():
    chain = contract.training_chain()
    fast = Cluster((chain.cluster.devices[0],), ())
    assert gnnplace.move_to_cluster(chain, fast).num_devices == 1
    with pytest.raises(InputError, match="'t4'"):
        gnnplace.move_to_cluster(chain, make_preset("pcie-t4-2"))


@pytest.mark.parametrize(
    ("given", "message"),
    [({"groups": 0}, "groups"), ({"microbatches": 0}, "microbatches")],
)
def test_options_are_checked(given, message):
    with pytest.raises(InputError, match=message):
        gnnplace.CaptureOptions(**given)


def test_micro_batches_are_read_off_a_placement():
    assert (
        gnnplace.count_placed_microbatches(
            {"device": {"a#0": "d", "a#3": "d", "u": "d"}}
        )
        == 4
    )
    assert gnnplace.count_placed_microbatches({"device": {"a": "d"}}) == 1
    assert gnnplace.count_placed_microbatches([]) == 1


def test_the_package_says_what_it_has():
    assert {"capture", "place", "simulate", "Problem"} <= set(dir(gnnplace))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gnnplace.nonsense


def test_placing_a_problem_file_waits_for_no_torch():
    code = "import sys, gnnplace.cli.place; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
