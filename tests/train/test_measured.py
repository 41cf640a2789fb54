"""Fine-tuning on measured steps: on a made-up machine, and for real with a run that is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import Trainer

from gnnplace.errors import InputError
from gnnplace.measurements import MeasurementStore
from gnnplace.measurements.objective import Measured, StepObjective
from gnnplace.policy.network import read_policy
from gnnplace.problem.placement import placement_from_data, write_placement
from gnnplace.simulation import Simulator
from gnnplace.train.data import random_families
from gnnplace.train.measured import ALIKE, Effort, MeasuredTuning, Rounds, proposals

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]


def chunky():
    families, clusters = random_families.TRAIN, random_families.TRAIN_CLUSTERS
    sizes = {
        "ops": (30, 40),
        "devices": (2, 2),
        "clusters": clusters[:1],
        "microbatches": (1,),
    }
    return random_families.random_problem(
        families[0], 3, random_families.RandomDraws(**sizes)
    )


class MadeUp(StepObjective):
    """A machine whose ops take other times than profiled; some placements fail."""

    def __init__(self, failing=0):
        self.seed, self.failing, self.asked = 0, failing, []
        self._problem = chunky()
        factor = np.exp(
            np.random.default_rng(4).normal(0.1, 0.4, self._problem.num_ops)
        )
        time = {kind: seconds * factor for kind, seconds in self._problem.time.items()}
        self.true = replace(self._problem, time=time)

    @property
    def problem(self):
        return self._problem

    def measure(self, placements):
        return [self._measured(placement) for placement in placements]

    def _measured(self, placement):
        self.asked.append(placement)
        if len(self.asked) <= self.failing:
            return Measured(None, "a worker died")
        simulator = Simulator(self.true)
        seconds = simulator.step_time(placement.device, simulator.find_order(placement))
        kinds = [device.kind for device in self.true.cluster.devices]
        ops = {
            name: float(self.true.time[kinds[d]][i])
            for i, (name, d) in enumerate(
                zip(self.true.graph.names, placement.device, strict=True)
            )
        }
        return Measured(seconds, ops=ops)

    def keep(self, path, placement):
        write_placement(path, placement, self._problem)


def tuned(folder, objective, measurements=6, **options):
    torch.manual_seed(0)
    small = {
        "population": 4,
        "step_size": 0.3,
        "effort": Effort(samples=2, moves=60, variants=1),
    }
    export = str(folder / "policy")
    module = MeasuredTuning(objective, measurements, export=export, **small, **options)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        default_root_dir=folder,
    )
    trainer.fit(module, Rounds(generations=2))
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    objective = MadeUp()
    return folder, objective, tuned(folder, objective)


def test_it_measures_as_often_as_it_was_told_and_nothing_twice(run):
    _, objective, module = run
    assert len(objective.asked) == len(module.posterior.observed) == 6
    assert len({placement.key for placement in objective.asked}) == 6


def test_what_it_finds_is_faster_than_what_the_simulator_alone_would_choose(run):
    _, _, module = run
    seconds = [entry.measured.seconds for entry in module.posterior.observed]
    assert module.posterior.best().measured.seconds == min(seconds)
    assert min(seconds) < 0.99 * seconds[0]


def test_it_learns_what_ops_take(run):
    _, objective, module = run
    for kind, seconds in objective.true.time.items():
        before = np.abs(np.log(objective.problem.time[kind] / seconds)).mean()
        after = np.abs(np.log(module.posterior.ops.problem.time[kind] / seconds)).mean()
        assert after < 0.6 * before


def test_the_policy_is_changed_and_saved_with_placement_and_table(run):
    folder, objective, module = run
    kept = read_policy(folder / "policy").state_dict()
    assert all(torch.equal(v, kept[k]) for k, v in module.kept.state_dict().items())
    torch.manual_seed(0)
    before = MeasuredTuning(MadeUp()).policy.refiner
    assert not torch.equal(module.policy.refiner, before)
    data = json.loads((folder / "placement.json").read_text())
    placement = placement_from_data(data, objective.problem)
    assert placement.key == module.posterior.best().placement.key
    rows = list(csv.DictReader((folder / "measured.csv").open()))
    assert len(rows) == 6
    measured = [float(row["measured"]) for row in rows]
    assert min(measured) == pytest.approx(
        1e3 * module.posterior.best().measured.seconds, abs=1e-3
    )


def test_a_worse_policy_is_not_kept(run):
    _, _, module = run
    assert module._believe(module.kept) <= module._believe(module.average) * (1 + 1e-9)


def test_failures_are_bad_rewards(tmp_path):
    module = tuned(tmp_path, MadeUp(failing=2), measurements=4)
    assert [entry.measured.seconds is None for entry in module.posterior.observed] == [
        True,
        True,
        False,
        False,
    ]
    assert module.posterior.best().measured.seconds
    assert "a worker died" in (tmp_path / "measured.csv").read_text()


def test_nothing_that_can_run_ends_without_a_crash(tmp_path):
    module = tuned(tmp_path, MadeUp(failing=99), measurements=3)
    assert len(module.posterior.observed) == 3
    assert not (tmp_path / "placement.json").exists()


def test_several_at_a_time_are_apart(tmp_path):
    module = tuned(tmp_path, MadeUp(), measurements=4, at_once=2)
    assert [number for number, *_ in module.rounds] == [0, 0, 1, 1]


def test_the_same_policy_and_seed_propose_the_same_and_all_can_run():
    problem, policy = chunky(), MeasuredTuning(MadeUp()).policy
    made = [
        proposals(
            policy,
            ("upward-rank",),
            problem,
            np.random.default_rng(3),
            Effort(3, 80, 0),
        )
        for _ in range(2)
    ]
    assert [p.key for p in made[0]] == [p.key for p in made[1]]
    assert len({p.key for p in made[0]}) == len(made[0]) > 3
    simulator = Simulator(problem)
    assert all(
        simulator.run(p.device, simulator.find_order(p)).feasible for p in made[0]
    )


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match="measurements"):
        MeasuredTuning(MadeUp(), 0)
    with pytest.raises(InputError, match="generations"):
        Rounds(0)
    assert 0 < ALIKE < 0.01


def command(folder, *more):
    options = {
        "trainer.default_root_dir": folder,
        "model.export": folder / "policy",
        "model.objective.init_args.model": "mlp?batch=8",
        "model.objective.init_args.store.url": folder / "store.db",
        "model.objective.init_args.measurement.mode": "emulated",
        "model.objective.init_args.measurement.steps": 2,
        "model.measurements": 4,
        "model.population": 4,
        "model.effort.moves": 40,
        "model.effort.variants": 0,
        "trainer.enable_progress_bar": "false",
    }
    given = [f"--{key}={value}" for key, value in options.items()]
    recipe = f"--config={ROOT / 'trainers' / 'measured.yaml'}"
    return [sys.executable, "-m", "gnnplace", "train", "fit", recipe, *given, *more]


def runs(folder):
    path = folder / "store.db"
    return MeasurementStore(path).runs() if path.exists() else []


@pytest.mark.campaign
@pytest.mark.parametrize(
    "again", [(), ("--ckpt_path=last",)], ids=["anew", "checkpoint"]
)
def test_a_run_that_is_killed_goes_on_and_measures_nothing_twice(tmp_path, again):
    env = os.environ | {"GNNPLACE_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        command(tmp_path), cwd=ROOT, env=env, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 200
    saved = tmp_path / "checkpoints" / "last.ckpt"
    while (
        not (len(runs(tmp_path)) >= 2 and saved.exists())
        and time.monotonic() < deadline
    ):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(
        command(tmp_path, *again),
        cwd=ROOT,
        env=env,
        check=True,
        stderr=subprocess.DEVNULL,
    )
    found = [run for run in runs(tmp_path) if run.outcome.status == "ok"]
    placements = [
        json.dumps(MeasurementStore(tmp_path / "store.db").placement(r.id))
        for r in found
    ]
    assert len(found) == len(set(placements)) == 4
    assert (tmp_path / "placement.json").exists()
