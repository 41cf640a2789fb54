"""All placers by name: those of the placers room and those with a policy.

Torch is imported when a placer with a policy is made, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnplace.errors import InputError
from gnnplace.graph.orders import ORDERS
from gnnplace.placers.base import Placer
from gnnplace.placers.plugins import installed, installed_class, named_class
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
    """Names of all placers; those of packages that are installed beside this one come last."""
    return (*ROSTER, *installed(frozenset(ROSTER)))


def shown_placers() -> tuple[str, ...]:
    """Names of the placers that a comparison shows unasked: all but the untrained control."""
    hidden = {row.name for row in ROSTER.values() if not row.shown}
    return tuple(name for name in placer_names() if name not in hidden)


def placer_options() -> dict[str, Option]:
    """Every option that some placer has, by name."""
    return {key: option for row in ROSTER.values() for key, option in row.options.items()}


def find_placer(name: str) -> tuple[Row, dict[str, Any]]:
    """The row of a placer, and the options written behind its name.

    Args:
        name: one of ``placer_names()``, ``module:Class`` or ``path/to/file.py:Class``; options may
            stand behind it: ``exact?workers=2``.

    Raises:
        InputError: an unknown placer, or a class that is none.
    """
    base, written = parse_name(name)
    others = installed(frozenset(ROSTER))
    if base in ROSTER:
        return ROSTER[base], written
    if base in others:
        return installed_class(others[base]), written
    if ":" in base:
        return named_class(base), written
    known = ", ".join(placer_names())
    raise InputError(f"placer {base!r}: unknown; placers: {known}, or module:Class")


def make_placer(name: str | Placer, **options: Any) -> Placer:
    """A placer by its name.

    Args:
        name: as ``find_placer`` has it; or a placer, which is given back.
        options: options of the placer; None stands for an option that is not given.

    Raises:
        InputError: an unknown placer or option, or an option that the placer does not have.
        FormatError, MismatchError: the checkpoint is missing, malformed or of another version.
    """
    if isinstance(name, Placer):
        if asked := [key for key, value in options.items() if value is not None]:
            raise InputError(f"{asked[0]}: the placer {name.name!r} is made; give it to its class")
        return name
    row, written = find_placer(name)
    base = row.name
    given = written | {key: value for key, value in options.items() if value is not None}
    for key in given:
        having = [row.name for row in ROSTER.values() if key in row.options]
        if having and base not in having:
            raise InputError(f"placer {base!r}: {key} is an option of {', '.join(having)} alone")
    return row.made(given)
