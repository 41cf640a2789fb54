"""A table of priced plans and the constants that it stands on, as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gnnplace.costs import Constant, ServerNetwork, tested_words
from gnnplace.planning import PricedTable

SHOWN = 30  # rows


def priced_lines(priced: PricedTable) -> Iterator[str]:
    """Format the feasible plans, the fastest first, then the others with the reason."""
    order = priced.best_first()
    if priced.environment:
        environment = f", environment {priced.environment}"
    else:
        environment = ""
    count = f"{len(order)} plans" if len(order) > 1 else "1 plan"
    tested = "by captured kernels"
    if priced.by_sizes:
        tested = tested_words(priced.framework)
    yield f"{count}, priced as {priced.framework} trains{environment} ({tested}); the fastest first"
    yield f"{'step':>10}  {'four in five within':>21}  {'tokens/s':>10}  {'peak':>8}  fits  plan"
    for k in order[:SHOWN]:
        answer = priced.answers[k]
        # A plan is named by the cells of its row, as the table's author wrote them.
        cells = zip(priced.table.columns, priced.table.cells[k], strict=True)
        words = ",".join(
            f"{name}={cell.strip()}" for name, cell in cells if cell.strip()
        )
        if answer.step_time is None or answer.low is None or answer.high is None:
            yield f"{'-':>10}  {words}: {answer.reason}"
            continue
        rate = ""
        if answer.tokens_per_second is not None:
            rate = f"{answer.tokens_per_second:.0f}"
        if answer.peak is None:
            memory = ""
        else:
            memory = f"{answer.peak / 1e9:.1f} GB"
        if answer.fits is None:
            fits = ""
        else:
            fits = f"{answer.fits:.0%}"
        within = f"{answer.low:.4g} to {answer.high:.4g} s"
        if answer.feasible:
            why = ""
        else:
            why = f": {answer.reason}"
        yield (
            f"{answer.step_time:>8.4g} s  {within:>21}  {rate:>10}  {memory:>8}  {fits:>4}  "
            f"{words}{why}"
        )
    # Each reason once, in the order of the plans.
    reasons = (answer.untested for answer in priced.answers if answer.untested)
    for untested in dict.fromkeys(reasons):
        yield f"no published run of {priced.framework} was compared {untested}: intervals are wider"
    if len(order) > SHOWN:
        yield f"and {len(order) - SHOWN} more; -o answers.csv has all"


def constant_lines(
    constants: Iterable[Constant], network: ServerNetwork, kinds: set[str]
) -> Iterator[str]:
    """Format what is assumed, by owner, for the kinds of devices of the cluster.

    Args:
        constants: in the order of their owners.
        network: what the cluster's links say.
        kinds: of the cluster's devices.
    """
    if network.card:
        rails = f", {network.card / 1e9:.4g} GB/s a device between servers"
    else:
        rails = ""
    fabric = network.fabric or "links of no measured fabric"
    yield (
        f"cluster: servers of {network.per_server}, {fabric} "
        f"at {network.inside / 1e9:.4g} GB/s inside{rails}"
    )
    owner = ""
    for constant in constants:
        name, _, kind = constant.name.partition(".")
        if kind and kind not in kinds and name != "card":
            continue
        if constant.owner != owner:
            owner = constant.owner
            yield f"{owner}:"
        yield f"  {constant.name:24} {constant.value:>10.4g} {constant.unit}: {constant.source}"
