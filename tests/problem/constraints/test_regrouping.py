"""A placement under constraints is run with the groups that it was made for."""

from __future__ import annotations

import pytest

import gnnplace
from gnnplace.errors import InfeasibleError, MismatchError
from gnnplace.files import write_json
from gnnplace.problem.placement import OPTIONS_KEY, placement_to_data
from gnnplace.run.placed.structure import read_unbound_placement
from gnnplace.tracing.models import capture_model
from tests.run.device_maps.mapped import captured, placed

ASKED = {
    "pin": {"blocks.0": "gpu:1"},
    "forbid": {"head": "gpu:0"},
    "together": [["blocks.2", "blocks.3"]],
}


def test_the_file_of_a_placement_says_how_to_group(tmp_path):
    """What `execute` and `compile` make of the file has the fingerprint and the devices of it."""
    options = gnnplace.CaptureOptions(groups=60, constraints=ASKED)
    problem = gnnplace.profile("mlp?depth=4", "nvlink-a100-2", options=options)
    placement = gnnplace.place(problem, placer="heft", budget=0.0).placement
    program = capture_model("mlp?depth=4", options=options, fake=True)
    path = tmp_path / "placement.json"
    write_json(
        path, placement_to_data(placement, problem) | {OPTIONS_KEY: options.to_data()}
    )
    again, same = read_unbound_placement(path, None).bind(program, None, anywhere=True)
    assert again.fingerprint == problem.fingerprint
    assert same.device.tolist() == placement.device.tolist()
    plain = gnnplace.CaptureOptions(groups=60)
    write_json(
        path, placement_to_data(placement, problem) | {OPTIONS_KEY: plain.to_data()}
    )
    with pytest.raises(MismatchError):
        read_unbound_placement(path, None).bind(program, None, anywhere=True)


def test_options_are_read_as_they_are_written():
    """What a file says of the options makes equal options."""
    options = gnnplace.CaptureOptions(groups=60, constraints=ASKED)
    assert gnnplace.CaptureOptions(**options.to_data()) == options
    assert "constraints" not in gnnplace.CaptureOptions().to_data()


def test_modules_are_whole_again_when_the_placement_is_run(tmp_path):
    """A placement by module has the same units, whoever captures the model again."""
    options = gnnplace.CaptureOptions(constraints={"by_module": True})
    program, problem = captured(forward_only=False, cluster="nvlink-a100-2")
    data = placement_to_data(placed(problem, {"blocks.1": 1}), problem)
    write_json(tmp_path / "placement.json", data | {OPTIONS_KEY: options.to_data()})
    again, same = read_unbound_placement(tmp_path / "placement.json", None).bind(
        program, None, anywhere=True
    )
    assert again.fingerprint == problem.fingerprint
    assert again.unit_of.tolist() == problem.unit_of.tolist()
    assert same.device.max() == 1


def test_limits_of_devices_given_with_capture_options_are_obeyed():
    """They count as those that are given where a problem is placed."""
    model = "mlp?batch=4&width=32"
    plain = gnnplace.CaptureOptions(forward_only=True)
    whole = gnnplace.profile(model, "nvlink-a100-2", options=plain)
    one = gnnplace.place(whole, placer="single", budget=0.0)
    peak = float(gnnplace.simulate(whole, one.placement).peak_memory.max())
    asked = {"max_devices": 1, "max_memory": {0: peak, 1: peak}, "headroom": "0%"}
    options = gnnplace.CaptureOptions(forward_only=True, constraints=asked)
    problem = gnnplace.profile(model, "nvlink-a100-2", options=options)
    assert problem.cluster.memory.tolist() == [peak, peak]
    placed = gnnplace.place(problem, placer="contiguous", budget=0.0).placement
    assert len(set(placed.device.tolist())) == 1
    tight = gnnplace.CaptureOptions(
        forward_only=True, constraints=asked | {"headroom": "50%"}
    )
    with pytest.raises(InfeasibleError):
        gnnplace.place(
            gnnplace.profile(model, "nvlink-a100-2", options=tight), budget=0.0
        )
