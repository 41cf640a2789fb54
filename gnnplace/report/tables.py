"""Tables for people: comparison of placers, and one simulated placement, with rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gnnplace.problem import Problem
from gnnplace.report.rows import Row
from gnnplace.report.units import bytes_text, seconds_text
from gnnplace.simulation import Simulation


def comparison_table(rows: Sequence[Row], title: str) -> Table:
    """Placers side by side, the best predicted first; speed-ups are over placer ``single``.

    ``measured`` is wall clock, ``virtual`` the same run by the workers' own CPU time and stamps.
    """
    mode = next((row.mode for row in rows if row.mode), "measured")
    base = next((row for row in rows if row.placer == "single"), None)
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("placer", no_wrap=True)
    headings = ["predicted", mode, "virtual", "speed-up", "peak memory", "gap", "to place"]
    shown = [h for h in headings if h != "virtual" or mode == "measured"]
    if not any(row.executed for row in rows):
        shown = [h for h in shown if h not in (mode, "virtual")]
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remarks", overflow="fold")
    for row in sorted(rows, key=lambda row: (row.predicted is None, row.predicted)):
        cells = _cells(row, base, mode)
        style = "bold green" if row.placer == "best" else None
        table.add_row(row.placer, *(cells[h] for h in shown), _remarks(row), style=style)
    return table


def _cells(row: Row, base: Row | None, mode: str) -> dict[str, str]:
    return {
        "predicted": seconds_text(row.predicted),
        mode: seconds_text(row.executed),
        "virtual": seconds_text(row.virtual),
        "speed-up": _speedup(row, base),
        "peak memory": bytes_text(max(row.peak_memory)) if row.peak_memory else "-",
        "gap": "-" if row.gap is None else f"{row.gap:.1%}",
        "to place": seconds_text(row.seconds),
    }


def _remarks(row: Row) -> str:
    return row.error or "; ".join(part for part in (row.note, row.verified) if part)


def _speedup(row: Row, base: Row | None) -> str:
    """Of executed times where both were run, else of predicted ones, marked ``p``."""
    if base is None or base.predicted is None or not row.predicted:
        return "-"
    if row.executed and base.executed:
        return f"{base.executed / row.executed:.2f}x"
    return f"{base.predicted / row.predicted:.2f}x p"


def simulation_table(problem: Problem, simulation: Simulation) -> Table:
    """Busy share and peak memory of every device."""
    table = Table(title=f"{problem.name}: predicted step", title_justify="left")
    for heading in ("device", "kind", "ops", "busy", "peak memory", "of", "headroom"):
        table.add_column(heading, justify="left" if heading in ("device", "kind") else "right")
    busy = simulation.busy_share(problem.num_devices)
    for d, device in enumerate(problem.cluster.devices):
        table.add_row(
            device.name,
            device.kind,
            str(int((simulation.device == d).sum())),
            f"{busy[d]:.1%}",
            bytes_text(simulation.peak_memory[d]),
            bytes_text(device.memory),
            bytes_text(device.memory - simulation.peak_memory[d]),
        )
    return table


def memory_lines(problem: Problem, simulation: Simulation) -> list[str]:
    """Peak memory and headroom of each device, alike devices in one line."""
    told: dict[str, list[str]] = {}
    for device, peak in zip(problem.cluster.devices, simulation.peak_memory, strict=True):
        kept = f", {bytes_text(device.reserve)} of it reserved" if device.reserve else ""
        text = (
            f"{bytes_text(peak)} of {bytes_text(device.memory)}, "
            f"headroom {bytes_text(device.memory - peak)}{kept}"
        )
        told.setdefault(text, []).append(device.name)
    return [f"memory of {', '.join(names)}: {text}" for text, names in told.items()]
