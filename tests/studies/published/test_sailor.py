"""The reader of Sailor's steps on layers and servers that are made up, against sums by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.studies.published import sailor

ZONE = "here"
MESSAGE = 4 * 2048 * 1024  # bytes of an example between layers
# Of a layer's forward pass; twice as much backward.
SECONDS = {"Titan-RTX": 0.01, "RTX-2080": 0.02}
RATE = {"Titan-RTX": 4e9, "RTX-2080": 2e9}
PARAMETERS = 1e6  # of a layer and shard


def write(path: Path, content: object) -> None:
    """A file as the source has it, gzipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


@pytest.fixture
def folder(tmp_path):
    """Profiles of 26 equal layers on two kinds of GPUs, over two shards."""
    own = tmp_path / "sailor"
    info = {"params_floats": PARAMETERS, "act_mem_bytes": 1e6}
    degrees = {d: {str(k): info for k in range(26)} for d in ("1", "2", "4")}
    write(own / "llm_info.json.gz", {"OPT-350": degrees})
    for kind, seconds in SECONDS.items():
        layer = {"1": {"forward": seconds, "backward": 2 * seconds}}
        for shards in (1, 2):
            path = (
                own
                / "layer_profiles/Varuna/OPT-350"
                / kind
                / f"profile_{shards}.json.gz"
            )
            write(path, {str(k): layer for k in range(26)})
        steps = {
            d: {str(k): [0.0, 0.0, 0.0] for k in range(26)} for d in ("1", "2", "4")
        }
        write(own / "profiles/OPT-350" / kind / "profile.json.gz", {"1": steps})
    alike = {
        kind: {"1": [[0, 0, 0], rate / 2], "2": [[0, 0, 0], rate]}
        for kind, rate in RATE.items()
    }
    write(own / "network/network_coeffs_all_homo.json.gz", {"inter": alike})
    return tmp_path


def step(
    folder: Path, stages: list[list[str]], shards: int = 2, **more: object
) -> list[sailor.Outcome]:
    """What a plan of stages, each of kinds of its replicas' servers, is predicted to take; over so
    many shards, but for the first replicas, which have two."""
    count = 26 // len(stages)
    layers = [list(range(k * count, (k + 1) * count)) for k in range(len(stages))]
    servers = [
        [[[[kind, 2, ZONE]], shards if r else 2] for r, kind in enumerate(kinds)]
        for kinds in stages
    ]
    pipeline = {"layers_per_stage": layers, "tmp_per_stage": servers}
    row = {
        "pipeline_list": [pipeline],
        "mbs": 1,
        "gbs": 8,
        "real": 5.0,
        "red_grads": 0.1,
        "N": 2,
    }
    write(
        folder / "sailor/validation/there/OPT-350/N2/plan_config_N2.json.gz", row | more
    )
    return sailor.outcomes(folder)


def test_the_slower_of_two_stages_paces_the_pipeline(folder):
    """Seven slow micro-batches beside one of each, and two messages that block it for every one; a
    message goes at the rate of one GPU of the slower server's two."""
    (found,) = step(folder, [["Titan-RTX"], ["RTX-2080"]])
    fast, slow = (13 * 3 * SECONDS[kind] for kind in ("Titan-RTX", "RTX-2080"))
    message = MESSAGE / (RATE["RTX-2080"] / 2) + sailor.LATENCY
    least = 7 * slow + fast + slow + 2 * message
    assert found.answer.step_time == pytest.approx(least + 2 * 8 * message)
    assert found.seconds == 5.0
    assert found.plan.dp == 1


def test_the_slower_of_two_replicas_is_waited_for(folder):
    """Four micro-batches of the slow one, then gradients over what joins both: their bytes once a
    shard and way, two shards at a time."""
    (found,) = step(folder, [["Titan-RTX", "RTX-2080"]])
    work = 4 * 26 * 3 * SECONDS["RTX-2080"]
    reduced = 2 * 26 * PARAMETERS * 4 / RATE["RTX-2080"]
    assert found.answer.step_time == pytest.approx(work + reduced, rel=0.02)


def test_replicas_of_different_shards_meet_at_their_gradients(folder):
    """The slower one's four micro-batches, then both shards' bytes once each way, at what the one
    GPU of its server has."""
    (found,) = step(folder, [["Titan-RTX", "RTX-2080"]], shards=1)
    work = 4 * 26 * 3 * SECONDS["RTX-2080"]
    reduced = 2 * 26 * PARAMETERS * 4 / (RATE["RTX-2080"] / 2)
    assert found.answer.step_time == pytest.approx(work + reduced)


def test_a_row_that_is_all_gradients_is_left_out(folder):
    assert step(folder, [["Titan-RTX"], ["RTX-2080"]], red_grads=5.0) == []


def test_what_no_profile_has_is_no_number(folder):
    (found,) = step(folder, [["Titan-RTX"], ["RTX-2080"]], mbs=2)
    assert found.answer.step_time is None
    assert "profile" in found.answer.reason
