"""``gnnplace shard-counts``: the best split for 1, 2, 4 … devices, and how few are enough."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace

from gnnplace import api
from gnnplace.cli.console import print_json, print_lines
from gnnplace.cli.options import add_json, add_split_options, split_options
from gnnplace.report.sharding import count_lines
from gnnplace.sharding.device_counts import fewest_devices

SUMMARY = "Shows the best split for 1, 2, 4 … devices, and how few are enough."
INFEASIBLE = 3  # exit status: on no number of devices does anything fit


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("what", help="A network or a model.")
    add_split_options(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Prints the best strategy's time and memory for every number of devices."""
    found = api.shard_counts(args.what, split_options(args), memory_limit=args.memory_limit)
    if args.json:
        rows = [(n, (r.cost, r.memory) if r else (None, None)) for n, r in found.items()]
        print_json([{"devices": n, "cost": t, "memory": m} for n, (t, m) in rows])
    else:
        print_lines(*count_lines(found, limited=args.memory_limit is not None))
    return 0 if fewest_devices(found) is not None else INFEASIBLE
