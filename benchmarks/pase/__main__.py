"""The best split of a paper's network by counts: in words, in parts beside rivals, as tables.

python -m benchmarks.pase rnnlm --devices 16 [--bandwidth 2e9] [-o rnnlm.json]

What it writes is a file of tables, which `gnnplace shard` can be asked all its questions about.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.pase.costs import Machine, Setting, sharding_problem
from benchmarks.pase.layers import SplitSpace
from benchmarks.pase.markov_chain import random_search
from benchmarks.pase.networks.registry import NETWORKS, build_network
from benchmarks.pase.rivals import expert, greedy
from gnnplace.costs import Exchange, resolve_cluster
from gnnplace.sharding import CostParts, best_strategy, warm, write_sharding

PROPOSALS = 1_000_000  # of the random search: less than a second


def main() -> None:
    """Print the split and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("network", help=f"one of {', '.join(NETWORKS)}")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--flops", type=float, default=Machine().flops)
    parser.add_argument("--bandwidth", type=float, default=Machine().bandwidth)
    parser.add_argument("--cluster", help="whose fabric says what collectives take")
    parser.add_argument("--exactly", action="store_true", help="use all devices")
    parser.add_argument("--powers-of-two", action="store_true")
    parser.add_argument("-o", "--output", help="the tables, NAME.json")
    arguments = parser.parse_args()

    bandwidth, exchange = arguments.bandwidth, None
    if arguments.cluster is not None:
        exchange = Exchange(resolve_cluster(arguments.cluster))
        bandwidth = exchange.bandwidth
    setting = Setting(
        network=build_network(arguments.network),
        devices=arguments.devices,
        machine=Machine(arguments.flops, bandwidth, exchange=exchange),
        space=SplitSpace(arguments.exactly, arguments.powers_of_two),
    )
    sys.stdout.write("\n".join(lines_of(setting, arguments.output)) + "\n")


def lines_of(setting: Setting, output: str | None = None) -> list[str]:
    """Return a network's best split in words, and its cost in parts beside rivals.

    Args:
        setting: What is split.
        output: Where the tables are written, if at all.
    """
    problem = sharding_problem(
        setting.network, setting.devices, setting.machine, space=setting.space
    )
    if output is not None:
        write_sharding(output, problem)
    warm()
    result = best_strategy(problem, bounded=True)
    start = setting.data_parallel()
    rivals = {
        "expert": expert(setting, problem),
        "greedy": greedy(problem),
        "random search": random_search(problem, start, seed=0, proposals=PROPOSALS),
    }
    best = setting.parts(result.configuration)
    rows = {"this strategy": best, "data parallelism": setting.ddp()}
    rows |= {name: setting.parts(rival) for name, rival in rivals.items()}
    proof = "proven best" if result.exact else f"bound {result.bound}"
    words = setting.words(result.configuration)
    return [
        f"{problem.name} on {problem.devices} devices: {best.total * 1e3:.4g} ms ({proof})",
        *(
            f"  {layer.name}: {text}"
            for layer, text in zip(setting.network.layers, words, strict=True)
        ),
        *(f"{name}: {_in_parts(parts)}" for name, parts in rows.items()),
    ]


def _in_parts(parts: CostParts) -> str:
    seconds = (parts.compute, parts.reduction, parts.gradient, parts.resharding)
    names = ("computing", "sums", "gradients", "resharding")
    pairs = zip(names, seconds, strict=True)
    shares = ", ".join(f"{name} {1e3 * value:.4g}" for name, value in pairs)
    return (
        f"{parts.total * 1e3:.4g} ms ({shares}), {parts.memory / 1e9:.4g} GB a device"
    )


if __name__ == "__main__":
    main()
