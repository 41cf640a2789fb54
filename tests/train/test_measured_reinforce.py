"""Learning from measured steps, on a made-up machine."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import torch
from lightning import Trainer

from gnnplace.policy.decode.aims import list_device_limits
from gnnplace.policy.gnn.network import read_gnn
from gnnplace.problem.placement import read_placement
from gnnplace.simulation import Simulator
from gnnplace.train import MeasuredReinforce, Rounds
from tests.train.test_measured import MadeUp

torch.set_num_threads(1)
SIZES = {"hidden": 16, "layers": 1, "decoder_hidden": 16}


def fit(folder, objective, epochs=2, **given):
    torch.manual_seed(0)
    export = str(folder / "policy")
    sizes = {} if "start" in given else SIZES
    given = sizes | {"samples": 4, "kept": 4} | given
    made = MeasuredReinforce(objective, export=export, **given)
    Trainer(
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    ).fit(made, Rounds(3))
    return made


def true_seconds(objective, placement):
    simulator = Simulator(objective.true)
    return simulator.step_time(placement.device, simulator.find_order(placement))


def test_every_draw_is_measured_and_the_best_is_kept(tmp_path):
    objective = MadeUp()
    made = fit(tmp_path, objective)
    draws = 2 * 3 * (4 + len(list_device_limits(objective.problem.num_devices)))
    known = 2 * 3 - len(made.labels)  # steps that asked for a label again
    assert len(objective.asked) == draws + known + 2  # the own decode before and after
    best = min(true_seconds(objective, placement) for placement in objective.asked)
    kept = read_placement(tmp_path / "placement.json", objective.problem)
    assert true_seconds(objective, kept) == best == made.found[0]
    assert read_gnn(tmp_path / "policy").order == made.policy.order


def test_it_learns_what_the_machine_does(tmp_path):
    objective = MadeUp()
    fit(tmp_path, objective, epochs=12, learning_rate=3e-3)
    seconds = [true_seconds(objective, placement) for placement in objective.asked]
    assert np.mean(seconds[-30:]) < 0.97 * np.mean(seconds[:15])


def test_the_own_decode_moves_and_is_told_on_held_out_graphs_too(tmp_path):
    """The shipped network on a machine that differs from the profile; 3 s for ten epochs."""
    objective, other = MadeUp(), MadeUp()
    more = {"samples": 8, "kept": 6, "learning_rate": 3e-3, "held_out": [other]}
    fit(tmp_path, objective, 10, start="shipped", **more)
    with open(tmp_path / "own.csv", newline="") as file:
        mine, held_out = csv.DictReader(file)
    assert (mine["held_out"], held_out["held_out"]) == ("0", "1")
    assert float(mine["ratio"]) < 0.95
    assert float(mine["before_ms"]) == float(
        f"{1e3 * true_seconds(other, other.asked[0]):.4g}"
    )
    assert float(mine["after_ms"]) == float(
        f"{1e3 * true_seconds(other, other.asked[-1]):.4g}"
    )
    assert len(other.asked) == 2


class Changing(MadeUp):
    """A machine that becomes twice as slow; it runs everything anew, as where all is too old."""

    factor = 1.0

    def measure(self, placements):
        found = super().measure(placements)
        return [replace(one, seconds=self.factor * one.seconds) for one in found]


def test_a_label_costs_what_it_takes_now(tmp_path):
    objective = Changing()
    made = fit(tmp_path, objective)
    objective.factor = 2.0
    before = dict(made.labels)
    made.log = lambda *args, **kwargs: None
    made.batch_loss([])
    [limit] = [key for key in before if made.labels[key][0] != before[key][0]]
    assert made.labels[limit][0] > 1.5 * before[limit][0]


def test_failures_count_as_slow(tmp_path):
    made = fit(tmp_path, MadeUp(failing=7))
    assert np.isfinite(made.found[0])


def test_where_nothing_runs_nothing_is_kept(tmp_path):
    made = fit(tmp_path, MadeUp(failing=1000), epochs=1)
    assert made.found is None
    assert not (tmp_path / "placement.json").exists()
