"""Trains the learned chooser of shardings on random small networks; writes its weights.

Random stacks of layers (linear, convolution, attention, additions that skip layers) on 2 to 8
devices of random machines; targets are the exact excesses of all configurations. None of the
networks of the comparison is among them.

    python benchmarks/sharding_chooser.py [--seconds 240] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from gnnplace.files import write_json
from gnnplace.sharding import ShardingProblem, best_strategy
from gnnplace.sharding.chooser import FEATURES, HIDDEN, WEIGHTS, choose, predictions, scaled
from gnnplace.sharding.costs import Machine, sharding_problem
from gnnplace.sharding.layers import Dimension, Layer, Network, cross_entropy, linear, pointwise
from gnnplace.sharding.passes import two_passes
from gnnplace.sharding.stack import Images
from gnnplace.sharding.tree import elimination_tree, factors_of

PROBLEMS, HELD_OUT = 300, 40


def main() -> None:
    """Trains for a while, prints the gap on problems held out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(arguments.seed)
    problems = [random_problem(rng) for _ in range(PROBLEMS + HELD_OUT)]
    weights = train(problems[:PROBLEMS], rng, arguments.seconds)
    plain = {name: value.detach().numpy() for name, value in weights.items()}
    gap = mean_gap(problems[PROBLEMS:], plain)
    sys.stdout.write(f"mean gap on {HELD_OUT} problems held out: {100 * gap:.3g} %\n")
    data = {name: np.round(value, 6).tolist() for name, value in plain.items()}
    write_json(WEIGHTS, {"weights": data, "seed": arguments.seed, "held_out_gap": gap})


def random_problem(rng: np.random.Generator) -> ShardingProblem:
    """Cost tables of a random small network."""
    network = random_images(rng) if rng.random() < 0.5 else random_tokens(rng)
    machine = Machine(flops=1e13, bandwidth=float(10 ** rng.uniform(8.5, 11)))
    return sharding_problem(network, int(2 ** rng.integers(1, 4)), machine)


def random_images(rng: np.random.Generator) -> Network:
    """Convolutions with some residual additions, and linear layers."""
    net = Images("images", int(2 ** rng.integers(4, 9)), int(rng.choice([32, 64, 128])))
    net.convolution("first", int(rng.choice([16, 32, 64])), 3, stride=2)
    for k in range(int(rng.integers(2, 6))):
        entry, width = net.position, net.shape[0]
        net.convolution(f"{k}.a", width * int(rng.integers(1, 4)), int(rng.choice([1, 3])))
        if rng.random() < 0.5:
            net.convolution(f"{k}.b", width, 3)
            net.join(f"{k}.add", "add", (entry, net.position))
    for k in range(int(rng.integers(1, 4))):
        net.linear(f"linear{k}", int(rng.choice([256, 1024, 4096])))
    return net.network()


def random_tokens(rng: np.random.Generator) -> Network:
    """Perceptrons with residuals at every position, and a classifier over a vocabulary."""
    batch, sequence = int(2 ** rng.integers(3, 8)), int(2 ** rng.integers(5, 10))
    size, words = int(2 ** rng.integers(8, 12)), int(10 ** rng.uniform(3, 5))
    inner, outer = Dimension("in", size), Dimension("features", size)
    rows = (Dimension("batch", batch), Dimension("sequence", sequence), outer)
    layers = [Layer("first", linear(batch, inner, outer, sequence), (None,))]
    for k in range(int(rng.integers(1, 5))):
        source = layers[-1].name
        hidden = Dimension("hidden", size * int(rng.integers(1, 6)))
        layers.append(Layer(f"{k}.a", linear(batch, inner, hidden, sequence), (source,)))
        layers.append(Layer(f"{k}.b", linear(batch, hidden, outer, sequence), (f"{k}.a",)))
        layers.append(Layer(f"{k}.add", pointwise("add", rows, 2), (source, f"{k}.b")))
    classes = Dimension("vocabulary", words)
    layers.append(Layer("head", linear(batch, inner, classes, sequence), (layers[-1].name,)))
    layers.append(Layer("loss", cross_entropy(batch, sequence, words), ("head",)))
    return Network("tokens", tuple(layers))


def targets(problem: ShardingProblem) -> list[torch.Tensor]:
    """The exact excess of every configuration, in mean least costs; asinh of it."""
    factors = factors_of(problem)
    node = two_passes(elimination_tree(factors), factors, [(1.0, 0.0)]).node
    scale = float(np.mean([np.abs(cost.min()) for cost in problem.cost]))
    return [torch.asinh(torch.from_numpy((part[0] - part[0].min()) / scale)) for part in node]


def train(
    problems: list[ShardingProblem], rng: np.random.Generator, seconds: float
) -> dict[str, torch.Tensor]:
    """Weights after so many seconds of Adam, one problem a step."""
    shapes = {"inner": (FEATURES, HIDDEN), "inner_bias": (HIDDEN,), "outer": (HIDDEN,),
              "outer_bias": ()}  # fmt: skip
    weights = {name: torch.from_numpy(np.asarray(0.1 * rng.normal(size=shape)))
               for name, shape in shapes.items()}  # fmt: skip
    for value in weights.values():
        value.requires_grad_()
    optimizer = torch.optim.Adam(weights.values(), lr=3e-3)
    inputs = [(scaled(problem), targets(problem)) for problem in problems]
    begin, step = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        (costs, graph), wanted = inputs[int(rng.integers(len(inputs)))]
        tensors = [torch.from_numpy(cost) for cost in costs]
        tables = [[(v, torch.from_numpy(table)) for v, table in around] for around in graph]
        rounds = int(rng.integers(3, 11))
        loss = error(predictions(tensors, tables, weights, torch, rounds), wanted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        step += 1
        if step % 500 == 0:
            sys.stdout.write(f"step {step}: loss {loss.item():.4g}\n")
            sys.stdout.flush()
    return weights


def error(found: list[list[torch.Tensor]], wanted: list[torch.Tensor]) -> torch.Tensor:
    """Of the excesses after all rounds; configurations near the best count the most."""
    total = torch.zeros((), dtype=torch.float64)
    for number, excesses in enumerate(found, 1):
        for mine, right in zip(excesses, wanted, strict=True):
            weight = torch.exp(-2.0 * right)
            difference = torch.nn.functional.smooth_l1_loss(
                torch.asinh(mine), right, reduction="none", beta=0.05
            )
            total = total + number * (weight * difference).sum() / weight.sum()
    return total / (sum(range(1, len(found) + 1)) * len(wanted))


def mean_gap(problems: list[ShardingProblem], weights: dict[str, np.ndarray]) -> float:
    """Mean share by which the chosen strategies are above the best."""
    costs = [(problem.value(choose(problem, weights)), best_strategy(problem).cost)
             for problem in problems]  # fmt: skip
    return float(np.mean([cost / best - 1.0 for cost, best in costs]))


if __name__ == "__main__":
    main()
