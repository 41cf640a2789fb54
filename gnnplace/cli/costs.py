"""``gnnplace costs show``: the constants that predictions assume, with owners and sources."""

from __future__ import annotations

from jsonargparse import Namespace

from gnnplace.cli.console import show_answer
from gnnplace.errors import InputError
from gnnplace.problem import find_kind


def run(args: Namespace) -> int:
    """Print the constants, the hardware's first."""
    from gnnplace.costs import (
        get_network,
        iterate_constants,
        load_framework_constants,
        resolve_cluster,
    )
    from gnnplace.report import describe

    if args.action != "show":
        raise InputError(
            f"costs: action {args.action!r} is unknown; use: gnnplace costs show"
        )
    constants = list(iterate_constants(args.framework, args.environment))
    cluster = resolve_cluster(args.cluster)
    kinds = {find_kind(kind) or kind for kind in cluster.kinds}
    network = get_network(cluster, load_framework_constants(args.framework))
    show_answer(args, describe(network, constants=constants, kinds=kinds))
    return 0
