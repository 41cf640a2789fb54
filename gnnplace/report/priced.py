"""A table of priced plans and the constants that it stands on, as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from gnnplace.costs import Constant, ServerNetwork, describe_tests
from gnnplace.planning import PricedTable
from gnnplace.report.answer import Answer, Column, Lines, Table

SHOWN = 30  # rows


def describe_priced(priced: PricedTable, *, given: str) -> Answer:
    """Describe the feasible plans, the fastest first, then the others with the reason.

    Programs have the table as it was given, with the answers of each row.

    Args:
        priced: The plans and their answers.
        given: The file of the table, or the words of its only plan.
    """
    answers = priced.answers
    environment = f", environment {priced.environment}" if priced.environment else ""
    count = f"{len(answers)} plans" if len(answers) > 1 else "1 plan"
    tested = "by captured kernels"
    if priced.by_sizes:
        tested = describe_tests(priced.framework)

    def get_interval(k: int) -> str | None:
        """Return the times between which four of five steps are."""
        low = answers[k].low
        high = answers[k].high
        if low is None or high is None:
            return None
        return f"{low:.4g} to {high:.4g} s"

    def get_plan(k: int) -> str:
        """Return the cells of a row, as the table's author wrote them, and why it cannot be."""
        cells = zip(priced.table.columns, priced.table.cells[k], strict=True)
        words = ",".join(
            f"{name}={cell.strip()}" for name, cell in cells if cell.strip()
        )
        return words if answers[k].feasible else f"{words}: {answers[k].reason}"

    table = Table[int](
        columns=[
            Column("step", lambda k: answers[k].step_time, "{:.4g} s".format),
            Column("four in five within", get_interval),
            Column("tokens/s", lambda k: answers[k].tokens_per_second, "{:.0f}".format),
            Column("peak", lambda k: answers[k].peak, lambda b: f"{b / 1e9:.1f} GB"),
            Column("fits", lambda k: answers[k].fits, "{:.0%}".format),
            Column("plan", get_plan, words=True),
        ],
        rows=priced.best_first(),
        title=(
            f"{count}, priced as {priced.framework} trains{environment} ({tested}); the fastest "
            "first"
        ),
        max_rows=SHOWN,
        boxed=False,
    )
    # Each reason once, in the order of the plans.
    reasons = dict.fromkeys(answer.untested for answer in answers if answer.untested)
    lines = [
        f"no published run of {priced.framework} was compared {reason}: intervals are wider"
        for reason in reasons
    ]
    if len(answers) > SHOWN:
        lines.append("-o answers.csv has all plans")
    data = priced.rows if given.endswith(".csv") else priced.answer
    return Answer(given, [table, Lines(lines)], data)


def describe_network(
    network: ServerNetwork, *, constants: Sequence[Constant], kinds: set[str]
) -> Answer:
    """Describe the constants that predictions assume, for programs as a list.

    Args:
        network: What the cluster's links say.
        constants: The constants in the order of their owners.
        kinds: The kinds of the cluster's devices.
    """
    lines = list(constant_lines(constants, network, kinds))
    return Answer(
        title="Constants",
        sections=[Lines(lines)],
        data=lambda: [asdict(constant) for constant in constants],
    )


def constant_lines(
    constants: Iterable[Constant], network: ServerNetwork, kinds: set[str]
) -> Iterator[str]:
    """Format what is assumed, by owner, for the kinds of devices of the cluster.

    Args:
        constants: The constants in the order of their owners.
        network: what the cluster's links say.
        kinds: The kinds of the cluster's devices.
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
