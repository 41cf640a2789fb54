"""The contract tests that every placer must pass; placers outside this package can run them too.

Each function takes a placer and raises AssertionError where the contract is broken::

    from gnnplace.placers import contract

    def test_my_placer():
        for check in contract.CHECKS:
            check(MyPlacer())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from gnnplace.errors import InfeasibleError, UnsupportedError
from gnnplace.graph import ComputationGraph
from gnnplace.placers.base import Placer, Result
from gnnplace.problem import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Cluster,
    Device,
    Problem,
    build_problem,
    link_all_pairs,
    list_faults,
    with_microbatches,
)
from gnnplace.simulation import simulate


def training_chain(
    num_layers: int = 6, num_devices: int = 3, memory: float = 1e6, seed: int = 0
) -> Problem:
    """Build layers with forward, backward and update ops; layer i takes 1 to 3 s, 1 to 5 B are
    passed on.

    Weights are 10 B a layer; devices are ``d0`` ... of kinds ``fast`` and, the last one, ``slow``.
    """
    rng = np.random.default_rng(seed)
    names = []
    phase = []
    tensors = []
    for kind, code in (("f", FORWARD), ("b", BACKWARD), ("u", UPDATE)):
        names += [f"{kind}{i}" for i in range(num_layers)]
        phase += [code] * num_layers
    for i in range(num_layers):
        size = float(rng.integers(1, 6))
        back = num_layers + i
        if i + 1 < num_layers:
            onward = [i + 1, back]
        else:
            onward = [back]
        tensors.append((i, size, onward))
        tensors.append(
            (back, size, [back - 1, back + num_layers] if i else [back + num_layers])
        )
    work = rng.integers(1, 4, num_layers).astype(float)
    fast = np.concatenate([work, 2 * work, 0.1 * work])
    state = np.concatenate([np.full(num_layers, 10.0), np.zeros(2 * num_layers)])
    return build_problem(
        "training-chain",
        ComputationGraph.from_tensors(names, tensors),
        _cluster(num_devices, memory),
        {"fast": fast, "slow": 2 * fast},
        phase=np.array(phase, dtype=np.int8),
        colocate=tuple(f"w{i}" for i in range(num_layers)) * 3,
        state=state,
        error={"fast": np.full(len(names), 0.1)},
        source={"slow": ("table",) * len(names)},
    )


def _cluster(num_devices: int, memory: float) -> Cluster:
    devices = tuple(
        Device(
            name=f"d{i}",
            kind="slow" if 0 < i == num_devices - 1 else "fast",
            memory=memory,
        )
        for i in range(num_devices)
    )
    return Cluster(
        devices, link_all_pairs([d.name for d in devices], latency=0.1, bandwidth=10.0)
    )


def branches(num_branches: int = 4, num_devices: int = 4) -> Problem:
    """Build a source, independent branches of three ops and a sink: what parallelism is for."""
    names = [
        "source",
        *(f"x{b}.{i}" for b in range(num_branches) for i in range(3)),
        "sink",
    ]
    sink = len(names) - 1
    tensors = [(0, 1.0, [1 + 3 * b for b in range(num_branches)])]
    for b in range(num_branches):
        first = 1 + 3 * b
        tensors += [(first, 1.0, [first + 1]), (first + 1, 1.0, [first + 2])]
        tensors += [(first + 2, 1.0, [sink])]
    cost = np.array([1.0, *[4.0] * (3 * num_branches), 1.0])
    graph = ComputationGraph.from_tensors(names, tensors)
    cluster = _cluster(num_devices, 1e6)
    return build_problem("branches", graph, cluster, {"fast": cost, "slow": cost})


def build_barred_chain() -> Problem:
    """Build the chain with forbids: some layers keep off one device, one off all but the last."""
    problem = training_chain()
    forbid = np.zeros((problem.num_ops, problem.num_devices), dtype=bool)
    index = problem.graph.index
    forbid[[index["f0"], index["b1"], index["u4"]], 0] = True
    forbid[index["f3"], :-1] = True
    return replace(problem, forbid=forbid)


def lone_op() -> Problem:
    """Build one op on one device."""
    graph = ComputationGraph.from_tensors(["only"], [(0, 1.0, [])])
    return build_problem("lone", graph, _cluster(1, 10.0), {"fast": [2.0]})


def problems() -> Iterator[Problem]:
    """Return small problems that together use every feature of the format."""
    yield training_chain()
    yield branches()
    yield lone_op()
    yield with_microbatches(training_chain(), 3)
    yield training_chain(num_devices=1)
    pinned = training_chain()
    pin = np.full(pinned.num_ops, -1, dtype=np.int32)
    pin[pinned.graph.index["f2"]] = 1
    pin[pinned.graph.index["b5"]] = 2
    yield replace(pinned, pin=pin)
    yield build_barred_chain()
    yield with_microbatches(build_barred_chain(), 2)
    only_slow = training_chain()
    never = only_slow.time["fast"].copy()
    never[only_slow.graph.index["f3"]] = np.inf
    yield replace(only_slow, time={"fast": never, "slow": only_slow.time["slow"]})
    yield training_chain(memory=48.0)


def place(
    placer: Placer, problem: Problem, *, budget: float = 0.0, seed: int = 0
) -> Result | None:
    """Return the placer's result; None where it says why it cannot."""
    try:
        return placer.place(problem, budget=budget, seed=seed)
    except UnsupportedError:
        if placer.supports(problem) is None:
            raise
        return None


def check_placements_run_and_fit(placer: Placer) -> None:
    """Check that every op has an allowed device and a place in a sequence, and that memory, pins
    and classes hold.
    """
    for problem in problems():
        result = place(placer, problem)
        if result is None:
            continue
        assert list_faults(problem, result.placement.device) == []
        simulation = simulate(problem, result.placement)
        assert simulation.feasible, (problem.name, simulation.faults)
        assert (
            simulation.step_time
            == result.step_time
            == result.placement.predicted_step_time
        )
        assert result.placement.sequence is not None
        listed = np.concatenate(result.placement.sequence)
        assert sorted(listed.tolist()) == list(range(problem.num_ops))


def check_bound_and_names(placer: Placer) -> None:
    """Check that the bound is not above the step time, and that results carry the placer's name."""
    result = place(placer, training_chain())
    if result is None:
        return
    assert 0 < result.lower_bound <= result.step_time
    assert result.gap >= 0
    assert result.placer == result.placement.placer == placer.name
    assert placer.name in str(result)


def check_same_seed_same_placement(placer: Placer) -> None:
    """Check that with budget 0 the seed decides everything."""
    for problem in (training_chain(), branches()):
        first = place(placer, problem, seed=3)
        second = place(placer, problem, seed=3)
        if first is None or second is None:
            continue
        assert first.placement.device.tolist() == second.placement.device.tolist()
        assert first.step_time == second.step_time


def check_the_problem_is_not_changed(placer: Placer) -> None:
    """Check that placing leaves the problem as it was."""
    problem = training_chain()
    original = (problem.fingerprint, problem.times.copy(), problem.state.copy())
    place(placer, problem)
    assert problem.fingerprint == original[0]
    assert (problem.times == original[1]).all()
    assert (problem.state == original[2]).all()


def check_impossible_problems_are_refused(placer: Placer) -> None:
    """Check that InfeasibleError is raised, and no bad placement returned, where no device can run
    an op or nothing fits.
    """
    stuck = training_chain()
    nowhere = {kind: seconds.copy() for kind, seconds in stuck.time.items()}
    for seconds in nowhere.values():
        seconds[4] = np.inf
    for problem in (replace(stuck, time=nowhere), training_chain(memory=8.0)):
        if placer.supports(problem) is not None:
            continue
        try:
            result = placer.place(problem)
        except InfeasibleError:
            continue
        raise AssertionError(
            f"{placer.name} returned {result} for an impossible problem"
        )


def check_device_names_do_not_matter(placer: Placer) -> None:
    """Check that renaming devices changes nothing."""
    problem = branches()
    names = {device.name: f"other-{device.name}" for device in problem.cluster.devices}
    renamed = replace(
        problem,
        cluster=Cluster(
            tuple(
                d.model_copy(update={"name": names[d.name]})
                for d in problem.cluster.devices
            ),
            tuple(
                link.model_copy(
                    update={"source": names[link.source], "target": names[link.target]}
                )
                for link in problem.cluster.links
            ),
        ),
    )
    first = place(placer, problem, seed=1)
    second = place(placer, renamed, seed=1)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.step_time == second.step_time


CHECKS: tuple[Callable[[Placer], None], ...] = (
    check_placements_run_and_fit,
    check_bound_and_names,
    check_same_seed_same_placement,
    check_the_problem_is_not_changed,
    check_impossible_problems_are_refused,
    check_device_names_do_not_matter,
)
