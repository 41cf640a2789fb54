"""Learning from measured steps, on a made-up machine."""

from __future__ import annotations

import numpy as np
import torch
from lightning import Trainer

from gnnplace.policy.decode.aims import device_limits
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
    made = MeasuredReinforce(objective, samples=4, kept=4, export=export, **SIZES, **given)
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
    return simulator.step_time(placement.device, simulator.order_of(placement))


def test_every_draw_is_measured_and_the_best_is_kept(tmp_path):
    objective = MadeUp()
    made = fit(tmp_path, objective)
    assert len(objective.asked) == 2 * 3 * (4 + len(device_limits(objective.problem.num_devices)))
    best = min(true_seconds(objective, placement) for placement in objective.asked)
    kept = read_placement(tmp_path / "placement.json", objective.problem)
    assert true_seconds(objective, kept) == best == made.found[0]
    assert read_gnn(tmp_path / "policy").order == made.policy.order


def test_it_learns_what_the_machine_does(tmp_path):
    objective = MadeUp()
    fit(tmp_path, objective, epochs=12, learning_rate=3e-3)
    seconds = [true_seconds(objective, placement) for placement in objective.asked]
    assert np.mean(seconds[-30:]) < 0.97 * np.mean(seconds[:15])


def test_failures_count_as_slow(tmp_path):
    made = fit(tmp_path, MadeUp(failing=7))
    assert np.isfinite(made.found[0])


def test_where_nothing_runs_nothing_is_kept(tmp_path):
    made = fit(tmp_path, MadeUp(failing=1000), epochs=1)
    assert made.found is None
    assert not (tmp_path / "placement.json").exists()
