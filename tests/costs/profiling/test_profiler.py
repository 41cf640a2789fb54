"""From a program to a problem."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnplace.costs.profiling import cache, profiler
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InputError
from gnnplace.problem import UPDATE
from gnnplace.tracing.program.microbatching import with_program_microbatches
from gnnplace.tracing.program.program import Program
from tests.costs.profiling.programs import captured, cluster, small


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path))


def test_measured_and_cached() -> None:
    program, said = small("mlp", width=16, depth=2), []
    first = profile(program, cluster("cpu", "cpu"), progress=said.append)
    again = profile(program, cluster("cpu", "cpu"), progress=said.append)
    assert "measuring" in said[0]
    # 3: noisy.
    assert len([line for line in said if line.startswith("measuring")]) in (1, 3)
    assert np.array_equal(first.time["cpu"], again.time["cpu"])
    assert not first.estimated.any()
    assert first.time["cpu"].sum() > 0


def test_devices_that_are_not_here_are_estimated() -> None:
    problem = profile(small(), cluster("a100", "t4"))
    assert problem.estimated.all()
    assert problem.time["a100"].sum() < problem.time["t4"].sum()
    for kind in ("a100", "t4"):
        assert np.isfinite(problem.error[kind]).all()
        assert all(problem.source[kind])
    with pytest.raises(InputError, match="abacus"):
        profile(small("mlp", width=8, depth=1), cluster("abacus"))


def test_a_gpu_that_is_here_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(program: Program, device: str) -> tuple[np.ndarray, float]:
        asked.append(device)
        return np.ones(len(program.ops)), 0.0

    monkeypatch.setattr(cache, "MOST_LOAD", float("inf"))  # measured once, noisy or not
    monkeypatch.setattr(profiler, "measure_ops", measure)
    monkeypatch.setattr(
        profiler, "gpu_names", lambda: (("NVIDIA T4", 1.0), ("NVIDIA H200", 1.0))
    )
    problem = profile(small("mlp", width=8, depth=1), cluster("h200", "v100"))
    assert asked == ["cuda:1"]
    assert problem.estimated.all()  # the times on v100 are


@pytest.mark.parametrize("groups", [30, 60])
def test_wished_number_of_groups(groups: int) -> None:
    problem = profile(small(), cluster("a100"), groups=groups)
    assert 0.6 * groups <= problem.num_ops <= groups
    assert problem.num_units < problem.num_ops


def test_updates_stay_in_groups_of_their_own() -> None:
    program = small()
    problem = profile(program, cluster("a100"), groups=60)
    phases = {op.name: op.phase for op in program.ops}
    for i, members in enumerate(problem.members):
        assert len({phases[name] for name in members}) == 1
        assert (problem.phase[i] == UPDATE) == (phases[members[0]] == "update")


def test_without_coarsening_only_what_belongs_together_is_grouped() -> None:
    program = small()
    problem = profile(program, cluster("a100"))
    for members in problem.members:
        loose = [
            name
            for name in members
            if not program.ops[program.op_index[name]].view
            and not name.startswith("copy.")
        ]
        assert len(loose) <= 1 or all(name.startswith("update.") for name in loose)


def test_two_captures_have_one_fingerprint() -> None:
    """Times are measured anew; groups, names and edges must not follow them."""
    a = profile(captured("mlp", width=8, depth=1), cluster("cpu", "cpu"))
    b = profile(captured("mlp", width=8, depth=1), cluster("cpu", "cpu"))
    assert a.fingerprint == b.fingerprint


def test_micro_batches_are_copies_of_groups() -> None:
    program = small()
    one = profile(program, cluster("a100"), groups=40)
    four = profile(program, cluster("a100"), groups=40, microbatches=4)
    assert four.microbatches == 4
    each = four.time["a100"][four.phase != UPDATE].sum() / 4
    alone = one.time["a100"][one.phase != UPDATE].sum()
    # The host, once ahead of the GPU, stays it.
    assert 0.7 * alone < each < 1.01 * alone
    names = {name for members in four.members for name in members}
    assert names == {op.name for op in with_program_microbatches(program, 4).ops}


def test_updates_of_micro_batches_are_measured_with_all_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(program: Program, device: str) -> tuple[np.ndarray, float]:
        reads = [len(op.reads) if op.phase == "update" else 1.0 for op in program.ops]
        return np.array(reads), 0.0

    monkeypatch.setattr(profiler, "measure_ops", measure)
    program = small("mlp", width=8, depth=1)
    updates = [
        op for op in with_program_microbatches(program, 4).ops if op.phase == "update"
    ]
    problem = profile(program, cluster("cpu"), microbatches=4)
    expected = sum(len(op.reads) for op in updates)
    assert problem.time["cpu"][problem.phase == UPDATE].sum() == expected
    assert problem.time["cpu"].sum() == expected + 4 * (len(program.ops) - len(updates))
