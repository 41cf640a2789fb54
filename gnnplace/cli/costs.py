"""``gnnplace costs show``: the constants that predictions assume, with owners and sources."""

from __future__ import annotations

from dataclasses import asdict

from jsonargparse import Namespace

from gnnplace.cli.console import print_json, print_lines
from gnnplace.errors import InputError
from gnnplace.problem import find_kind


def run(args: Namespace) -> int:
    """Print the constants, the hardware's first."""
    from gnnplace.costs import assumed, framework, get_network, resolve_cluster
    from gnnplace.report import constant_lines

    if args.action != "show":
        raise InputError(
            f"costs: action {args.action!r} is unknown; use: gnnplace costs show"
        )
    constants = list(assumed(args.framework, args.environment))
    cluster = resolve_cluster(args.cluster)
    if args.json:
        print_json([asdict(constant) for constant in constants])
        return 0
    kinds = {find_kind(kind) or kind for kind in cluster.kinds}
    network = get_network(cluster, framework(args.framework))
    print_lines(*constant_lines(constants, network, kinds))
    return 0
