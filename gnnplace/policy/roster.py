"""All placers by name: those of the placers room and those with a policy.

Torch is imported when a placer with a policy is made, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnplace.errors import InputError
from gnnplace.graph.orders import ORDERS
from gnnplace.placers.base import Placer
from gnnplace.placers.registry import PLACERS
from gnnplace.placers.row import Option, Row, Speed, parse_name

if TYPE_CHECKING:
    from gnnplace.policy.learned import LearnedPlacer

UNTRAINED = "learned-untrained"
AUTO = "auto"


def _orders(order: str | None) -> tuple[str, ...] | None:
    """The traversal orders to decode in; None lets the policy choose.

    Raises:
        InputError: there is no such order.
    """
    if order in (None, AUTO):
        return None
    if order not in ORDERS:
        raise InputError(f"order {order!r}: unknown; orders: {AUTO}, {', '.join(ORDERS)}")
    return (str(order),)


def _learned(order: str | None = None, checkpoint: str | None = None) -> LearnedPlacer:
    orders = _orders(order)
    from gnnplace.policy.learned import LearnedPlacer, load_policy

    return LearnedPlacer(None if checkpoint is None else load_policy(checkpoint), orders)


def _untrained(order: str | None = None) -> Placer:
    orders = _orders(order)
    from gnnplace.policy.learned import untrained

    return untrained(orders)


def _gnn(order: str | None = None, checkpoint: str | None = None) -> Placer:
    orders = _orders(order)
    from gnnplace.policy.gnn.network import load_gnn
    from gnnplace.policy.gnn.placer import GnnPlacer

    policy = None if checkpoint is None else load_gnn(checkpoint)
    return GnnPlacer(policy, orders[0] if orders else None)


def _best(order: str | None = None, checkpoint: str | None = None) -> Placer:
    from gnnplace.policy.best import Best

    return Best(_learned(order, checkpoint))


TOLD = f"Traversal order of the policy: {', '.join(ORDERS)}; by default it chooses among several."
ORDER = Option(str, None, TOLD)
CHECKPOINT = Option(
    str, None, "Folder of a policy, as training exports it; by default the package's own."
)
POLICY_OPTIONS = {"order": ORDER, "checkpoint": CHECKPOINT}
POLICIES = (
    Row("learned", _learned, Speed.SEARCH, options=POLICY_OPTIONS, executed=True),
    Row("gnn", _gnn, Speed.SEARCH, options=POLICY_OPTIONS),
    Row(UNTRAINED, _untrained, Speed.SEARCH, options={"order": ORDER}, shown=False),
    Row("best", _best, Speed.SEARCH, options=POLICY_OPTIONS, executed=True),
)
ROSTER: dict[str, Row] = PLACERS | {row.name: row for row in POLICIES}


def placer_names() -> tuple[str, ...]:
    """Names of all placers."""
    return tuple(ROSTER)


def shown_placers() -> tuple[str, ...]:
    """Names of the placers that a comparison shows unasked: all but the untrained control."""
    return tuple(row.name for row in ROSTER.values() if row.shown)


def placer_options() -> dict[str, Option]:
    """Every option that some placer has, by name."""
    return {key: option for row in ROSTER.values() for key, option in row.options.items()}


def make_placer(name: str, **options: Any) -> Placer:
    """A placer by its name.

    Args:
        name: one of ``placer_names()``; options may stand behind it: ``exact?workers=2``.
        options: options of the placer; None stands for an option that is not given.

    Raises:
        InputError: an unknown placer or option, or an option that the placer does not have.
        FormatError, MismatchError: the checkpoint is missing, malformed or of another version.
    """
    base, written = parse_name(name)
    if base not in ROSTER:
        raise InputError(f"placer {base!r}: unknown; placers: {', '.join(ROSTER)}")
    given = written | {key: value for key, value in options.items() if value is not None}
    for key in given:
        having = [row.name for row in ROSTER.values() if key in row.options]
        if having and base not in having:
            raise InputError(f"placer {base!r}: {key} is an option of {', '.join(having)} alone")
    return ROSTER[base].made(given)
