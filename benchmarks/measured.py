"""Placers that may measure: what each comes to after equal numbers of measured placements.

Methods, each with N measurements of whole steps on two CPU workers:

    random       devices drawn for every unit; the best measured
    annealing    Metropolis on measured step times, from the construction that is predicted best
                 (HEFT, ETF, chunks, minimum cut, ...); the best measured
    tpe          Optuna's TPE over the devices of 24 stretches of equal work; the best measured
    heft         N - 1 placements that differ, a calibration fitted to them, HEFT on the calibrated
                 simulator; HEFT's placement
    policy       the shipped policy's proposals in the order of their prediction; the best measured
    tuned        `gnnplace.train.measured.MeasuredTuning`; of the measured, what is believed fastest

What a method chose after 5, 10 and 20 measurements is measured again at the end, all of a model
side by side in rounds, so that a lucky measurement decides nothing. A method that fails is a row.
Every run is in a store in the output folder: after an interruption the same command goes on.

`--clock made-up` measures on a machine that is made up (`MadeUp`): its ops, messages and contention
are drawn, its measurements are noisy, what a choice is worth is known exactly, and nothing runs.

    python benchmarks/measured.py [--clock wall|virtual|made-up] [--seeds 3] [-o runs/measured]
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import optuna
import torch
from lightning import Trainer
from made_up import MadeUp
from rich.console import Console
from rich.table import Table

import gnnplace
from gnnplace.measurements.calibration import Forward, apply_calibration, mean_overlap
from gnnplace.measurements.objective import Measured, StepObjective
from gnnplace.measurements.posterior import Posterior, fit_parameters
from gnnplace.measurements.samples import shortest
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import DECODED
from gnnplace.policy.learned import POLICY_CHECKPOINT, load_policy
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement
from gnnplace.run.measuring.candidates import draw_candidates
from gnnplace.simulation import Simulator, finish_placement
from gnnplace.train.measured import Effort, MeasuredTuning, Rounds, proposals
from gnnplace.train.workbench import MeasurementSettings, StoreSettings, Workbench

MODELS = "two_tower,inception?batch=4,moe?batch=512"
AFTER = (5, 10, 20)
STRETCHES = 24
HEFTS = ("heft", "heft-contention")
CONSTRUCTIONS = (*HEFTS, "etf", "contiguous", "expert", "min-cut", "single")
HEAT = 0.03  # of annealing, relative, at its start; a tenth of it at its end
HIGHEST = 3.0  # log of a failure's step time above one device's, for annealing and TPE
MADE_UP = "made-up"
NOISE = 0.03  # of a measurement, for what is fitted to few of them


@dataclass
class History:
    """What a method measured, in order, and how it chooses.

    Attributes:
        placements: Measured.
        found: What they came to.
        choose: The choice after so many measurements, if it is not the best measured.
    """

    bench: StepObjective
    placements: list[Placement] = field(default_factory=list)
    found: list[Measured] = field(default_factory=list)
    choose: Callable[[int], Placement] | None = None

    def measure(self, placement: Placement) -> float:
        """Seconds; of a failure much more than one device takes."""
        (measured,) = self.bench.measure([placement])
        self.placements.append(placement)
        self.found.append(measured)
        if measured.seconds is not None:
            return measured.seconds
        times = self.bench.problem.times
        return float(
            np.exp(HIGHEST) * np.where(np.isfinite(times), times, 0).sum(axis=0).min()
        )

    def choice(self, count: int) -> Placement:
        """What the method would use after `count` measurements."""
        if self.choose is not None:
            return self.choose(count)
        known = [
            (m.seconds, k)
            for k, m in enumerate(self.found[:count])
            if m.seconds is not None
        ]
        return self.placements[min(known)[1]]


def completed(problem: Problem, units: np.ndarray, name: str) -> Placement:
    """Devices of units with list scheduling."""
    device = units[problem.unit_of].astype(np.int32)
    return finish_placement(
        problem, device, Simulator(problem).complete(device), placer=name
    )


def random_search(history: History, seed: int, count: int) -> None:
    problem, rng = history.bench.problem, np.random.default_rng(seed)
    for _ in range(count):
        units = rng.integers(problem.num_devices, size=problem.num_units)
        history.measure(completed(problem, units, "random"))


def predicted_best(problem: Problem, names: Sequence[str], seed: int) -> Placement:
    """Of what some placers make of a problem at once, what is predicted fastest."""
    found = [
        gnnplace.place(problem, placer=name, budget=0, seed=seed) for name in names
    ]
    return min(found, key=lambda result: result.step_time).placement


def annealing(history: History, seed: int, count: int) -> None:
    problem, rng = history.bench.problem, np.random.default_rng(seed)
    start = predicted_best(problem, CONSTRUCTIONS, seed)
    units = np.empty(problem.num_units, np.int32)
    units[problem.unit_of] = start.device
    order, now = SearchSpace(problem).unit_order, history.measure(start)
    for step in range(count - 1):
        trial = units.copy()
        size = int(rng.integers(1, max(2, problem.num_units // 8)))
        first = int(rng.integers(problem.num_units))
        trial[order[first : first + size]] = rng.integers(problem.num_devices)
        seconds = history.measure(completed(problem, trial, "annealing"))
        heat = HEAT * 0.1 ** (step / max(count - 2, 1))
        if rng.random() < np.exp(min(0.0, -np.log(seconds / now) / heat)):
            units, now = trial, seconds


def tpe(history: History, seed: int, count: int) -> None:
    problem = history.bench.problem
    space = SearchSpace(problem)
    mean = np.where(np.isfinite(problem.times), problem.times, 0.0).mean(axis=1)
    done = np.cumsum(np.bincount(problem.unit_of, mean)[space.unit_order])
    stretch = np.empty(problem.num_units, np.int64)
    stretch[space.unit_order] = np.minimum(
        done / done[-1] * STRETCHES, STRETCHES - 1
    ).astype(int)

    def objective(trial: optuna.Trial) -> float:
        choices = [
            trial.suggest_categorical(f"stretch {k}", range(problem.num_devices))
            for k in range(STRETCHES)
        ]
        return history.measure(completed(problem, np.array(choices)[stretch], "tpe"))

    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=5)
    )
    study.optimize(objective, n_trials=count)


def heft(history: History, seed: int, count: int) -> None:
    problem = history.bench.problem

    def place(name: str) -> Placement:
        return gnnplace.place(problem, placer=name, budget=0, seed=seed).placement

    names = ["single", "contiguous", "heft", "etf", "random", "round-robin"]
    found = [
        c.placement
        for c in draw_candidates(problem, names, place, count, seed)
        if c.placement
    ]
    for placement in found[: count - 1]:
        history.measure(placement)
    while len(history.found) < count:  # a small problem has fewer
        history.measure(found[0])

    def choose(after: int) -> Placement:
        known = [
            (Forward(problem, p), m.seconds)
            for p, m in list(zip(history.placements, history.found, strict=True))[
                : after - 1
            ]
            if m.seconds is not None
        ]
        models, measured = zip(*known, strict=True)
        fitted = fit_parameters(models, np.array(measured), NOISE)
        best = models[int(np.argmin(measured))]
        better = apply_calibration(problem, fitted, mean_overlap(best))
        return predicted_best(better, HEFTS, seed)

    history.choose = choose


def policy(history: History, seed: int, count: int) -> None:
    problem, rng = history.bench.problem, np.random.default_rng(seed)
    effort = Effort(samples=2 * count)
    made = proposals(load_policy(), DECODED, problem, rng, effort)
    simulator = Simulator(problem)
    made.sort(key=lambda p: simulator.step_time(p.device, simulator.find_order(p)))
    for placement in made[:count]:
        history.measure(placement)


def tuned(history: History, seed: int, count: int) -> None:
    torch.manual_seed(seed)
    module = MeasuredTuning(
        history.bench, count, seed=seed, start=str(POLICY_CHECKPOINT), step_size=0.3
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module, Rounds(generations=2))
    observed = module.posterior.observed
    history.placements = [entry.placement for entry in observed]
    history.found = [entry.measured for entry in observed]

    def choose(after: int) -> Placement:
        posterior = Posterior(history.bench.problem)
        posterior.add(history.placements[:after], history.found[:after])
        return posterior.best().placement

    history.choose = choose


METHODS: dict[str, Callable[[History, int, int], None]] = {
    "random": random_search,
    "annealing": annealing,
    "tpe": tpe,
    "heft": heft,
    "policy": policy,
    "tuned": tuned,
}


def main() -> None:
    """Prints a table and writes every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--clock", default="wall", choices=("wall", "virtual", MADE_UP))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument(
        "--rounds", type=int, default=4, help="of the final measurement"
    )
    parser.add_argument("-o", "--output", default="runs/measured")
    arguments = parser.parse_args()
    quiet()
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for model in arguments.models.split(","):
        rows += compared(model, arguments, folder)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    out = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    for model in arguments.models.split(","):
        out.print(table(model, [row for row in rows if row["model"] == model]))


def compared(model: str, arguments: argparse.Namespace, folder: Path) -> list[dict]:
    """Rows of one model: a choice of a method, a seed and a number of measurements each."""
    made_up = arguments.clock == MADE_UP
    mode = "measured" if arguments.clock == "wall" else "emulated"
    bench = Workbench(
        model,
        "cpu:2",
        measurement=MeasurementSettings(mode=mode, steps=arguments.steps, check=False),
        store=StoreSettings(str(folder / "store.db")),
    )
    rows: list[dict] = []
    choices: dict[str, Placement] = {}
    for method in arguments.methods.split(","):
        for seed in seeds_of(arguments):
            sys.stderr.write(f"  {model}: {method}, seed {seed}\n")
            objective: StepObjective = bench.with_label(f"{model} {method} {seed}")
            if made_up:
                objective = MadeUp(bench.problem, seed, len(method))
            for row, choice in studied(History(objective), method, seed):
                row |= {"model": model, "method": method, "seed": seed}
                if choice is not None:
                    choices[row["choice"]] = choice
                if isinstance(objective, MadeUp) and choice is not None:
                    row["step"] = objective.seconds(choice)
                rows.append(row)
    single = gnnplace.place(bench.problem, placer="single", budget=0).placement
    if made_up:
        machines = [MadeUp(bench.problem, seed, 0) for seed in seeds_of(arguments)]
        one = fmean(machine.seconds(single) for machine in machines)
        return relative(
            [{"step": None} | row | {"one_device": one} for row in rows], "seed"
        )
    seconds = side_by_side(bench, [single, *choices.values()], arguments.rounds)
    one = seconds.get(single.key.hex(), float("nan"))
    steps = [
        row | {"step": seconds.get(row["choice"]), "one_device": one} for row in rows
    ]
    return relative(steps, "model")


def seeds_of(arguments: argparse.Namespace) -> range:
    """The seeds that are asked for."""
    return range(arguments.first_seed, arguments.first_seed + arguments.seeds)


def relative(rows: list[dict], same: str) -> list[dict]:
    """Adds each row's step time over the best one of the rows that were measured on its machine."""
    best: dict = {}
    for row in rows:
        if row["step"]:
            best[row[same]] = min(row["step"], best.get(row[same], float("inf")))
    return [
        row | {"ratio": row["step"] and row["step"] / best[row[same]]} for row in rows
    ]


def studied(
    history: History, method: str, seed: int
) -> list[tuple[dict, Placement | None]]:
    """A row and the choice after each number of measurements; a failure is a row without one."""
    error, found = "", []
    try:
        METHODS[method](history, seed, max(AFTER))
    except Exception as problem:  # a method that fails is a row
        error = " ".join(f"{type(problem).__name__}: {problem}".split())
    for after in AFTER:
        failed = sum(m.seconds is None for m in history.found[:after])
        row = {"after": after, "failed": failed, "error": error, "choice": ""}
        try:
            choice = history.choice(after)
        except (ValueError, IndexError) as problem:
            found.append((row | {"error": error or f"no placement: {problem}"}, None))
            continue
        found.append((row | {"choice": choice.key.hex()}, choice))
    return found


def side_by_side(
    bench: Workbench, chosen: list[Placement], rounds: int
) -> dict[str, float]:
    """Seconds of each choice's shortest step, over rounds in which all are measured in turn."""
    distinct = {placement.key.hex(): placement for placement in chosen}
    times: dict[str, list[float | None]] = {key: [] for key in distinct}
    for number in range(rounds):
        sys.stderr.write(f"  final round {number + 1}: {len(distinct)} placements\n")
        final = bench.with_label(f"{bench.name} final {number}")
        order = list(distinct)[:: -1 if number % 2 else 1]
        for key, measured in zip(
            order, final.measure([distinct[k] for k in order]), strict=True
        ):
            times[key].append(measured.seconds)
    good = {key: values for key, values in times.items() if None not in values}
    return dict(
        zip(good, shortest(list(zip(*good.values(), strict=True))), strict=True)
    )


def table(model: str, rows: list[dict]) -> Table:
    """Mean step time of each method's choice over seeds, relative to the best of all choices."""
    good = [row for row in rows if row["step"]]
    if not good:
        return Table(title=f"{model}: {rows[0]['error']}")
    one, best = good[0]["one_device"], min(row["step"] for row in good)
    title = f"{model}: one device {1e3 * one:.1f} ms, best choice {1e3 * best:.1f} ms"
    heads = (f"after {k}" for k in AFTER)
    shown = Table(
        "method", *heads, f"each seed after {AFTER[-1]}", "failed", title=title
    )
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        ratios = {
            k: [row["ratio"] for row in mine if row["after"] == k and row["ratio"]]
            for k in AFTER
        }
        cells = [f"{fmean(found):.3f}" if found else "-" for found in ratios.values()]
        each = ", ".join(f"{ratio:.3f}" for ratio in ratios[AFTER[-1]])
        errors = [row["error"] for row in mine if row["error"]]
        failed = sum(row["failed"] for row in mine if row["after"] == AFTER[-1])
        shown.add_row(method, *cells, each, errors[0] if errors else str(failed))
    return shown


def quiet() -> None:
    """Progress bars and warnings of the libraries say nothing here."""
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
