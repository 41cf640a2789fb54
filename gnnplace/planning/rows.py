"""`gnnplace.price_plans`: prices every plan of a table, by framework.

Text decoders in half precision on GPUs with known constants are priced from their sizes
(`plans.decoders`): nothing is captured, and a row takes a few milliseconds. Every other model, and
float32, is captured once, and each row is priced as one plan in words would be
(`plans.answers.price_given_plan`), for PyTorch only.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnplace.costs import (
    DEFAULT_FRAMEWORK,
    GPUS,
    has_step_constants,
    load_environment_constants,
    load_framework_constants,
    resolve_cluster,
)
from gnnplace.errors import InputError
from gnnplace.plans import (
    HALVES,
    PlanAnswer,
    PlanTable,
    TrainingJob,
    find_decoder,
    make_pricing_setting,
    make_spec_table,
    price,
    read_plan_table,
    with_adapters,
)
from gnnplace.problem import Cluster, cluster_with_headroom

if TYPE_CHECKING:
    from torch import nn

    from gnnplace.plans import Chain

AUTO = "auto"
ANSWERS = tuple(field.name for field in fields(PlanAnswer))
SUFFIX = ".csv"
Say = Callable[[str], None]


@dataclass(frozen=True)
class PricedTable:
    """A table of plans with the price of each.

    Attributes:
        table: The table as it was given.
        answers: The answer of every row, in the order of the rows.
        framework: The framework whose constants priced them.
        environment: The environment that was named, or None.
        by_sizes: Whether prices come from the model's sizes, and not from a capture.
    """

    table: PlanTable
    answers: tuple[PlanAnswer, ...]
    framework: str
    environment: str | None = None
    by_sizes: bool = True

    def csv(self) -> str:
        """Return the rows as CSV, as they were written, with the answers after them."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow((*self.table.columns, *ANSWERS))
        for cells, answer in zip(self.table.cells, self.answers, strict=True):
            figures = [_cell(getattr(answer, name)) for name in ANSWERS]
            writer.writerow((*cells, *figures))
        return out.getvalue()

    def rows(self) -> list[dict[str, Any]]:
        """Return each row's words and answers, for JSON."""
        return [
            dict(zip(self.table.columns, cells, strict=True))
            | {name: getattr(answer, name) for name in ANSWERS}
            | {"reason": answer.reason or None}
            for cells, answer in zip(self.table.cells, self.answers, strict=True)
        ]

    def answer(self) -> dict[str, Any]:
        """Return the row of a table of one plan, with an interval as `plan --json` prints it."""
        (row,) = self.rows()
        interval = None
        if row["low"] is not None:
            interval = [row["low"], row["high"]]
        return row | {"interval": interval}

    def best_first(self) -> list[int]:
        """Return the numbers of the rows, feasible ones first, and the fastest of each first."""

        def key(k: int) -> tuple[bool, float]:
            answer = self.answers[k]
            return not answer.feasible, answer.step_time or float("inf")

        return sorted(range(len(self.answers)), key=key)


def _cell(value: float | bool | str | None) -> str:
    """Return a cell of the answers: exact, and empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, str):
        return value
    return repr(float(value))


def read_given_table(given: str | Path) -> PlanTable:
    """Return the plans of a CSV file, or the one plan that is given in words.

    Raises:
        FormatError: The message names line and column of what cannot be read.
        InputError: The message names the word that is wrong.
    """
    if str(given).endswith(SUFFIX):
        return read_plan_table(given)
    return make_spec_table(str(given))


def price_plans(
    model: str | nn.Module,
    cluster: str | Cluster,
    given: str | Path,
    inputs: object = None,
    *,
    framework_name: str | None = None,
    environment_name: str | None = None,
    batch: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    lora: str | None = None,
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    accept_other_loss: bool = False,
    progress: Say | None = None,
) -> PricedTable:
    """Price the plans that a user gives.

    Args:
        model: `hf:CONFIG`, `module:callable`, a zoo name, or a module with `inputs`.
        cluster: A preset's name, a YAML file, cpu:N, cuda:N, or a cluster.
        given: A CSV file, a row a plan, columns of words; or one plan in words.
        inputs: Example inputs of a module.
        framework_name: The framework whose constants count, such as "nanotron"; None: PyTorch's
            own.
        environment_name: The environment, such as "checked-collectives"; None for none.
        batch: Examples of a step, where a row says nothing else.
        precision: The precision in Lightning's words; None: the framework's usual one if it is
            named, else "32-true".
        optimizer: The optimizer, one of `costs.optimizers`; None: "adamw".
        lora: low-rank adapters that are trained instead, as "r=16"; None: none.
        memory_limit: Bytes that every device has, instead of its own.
        headroom: What stays free on every device: "auto" what the framework takes, "10%", "2GB".
        accept_other_loss: Whether the batch may be cut although its loss is another one then.
        progress: Called with a line for each thing that is done.

    Raises:
        FormatError: The message names line and column of what cannot be read.
        InputError: If model, cluster or options are wrong.
    """
    table = read_given_table(given)
    name = framework_name or DEFAULT_FRAMEWORK
    load_framework_constants(name)
    if environment_name is not None:
        load_environment_constants(environment_name)
    devices = resolve_cluster(cluster)
    # Decoders are priced by their sizes where constants of the devices are known.
    has_tables = all(has_step_constants(kind) for kind in devices.kinds)
    named = framework_name is not None or environment_name is not None
    by_sizes = has_tables and (named or precision in HALVES)
    if by_sizes:
        decoder = find_decoder(model, inputs, devices.num_devices)
    else:
        decoder = None
    if decoder is not None:
        setting = make_pricing_setting(
            with_adapters(replace(decoder, batch=batch or decoder.batch), lora),
            devices,
            framework_name=name,
            environment_name=environment_name,
            precision=precision,
            optimizer=optimizer,
            memory_limit=_limit(devices, memory_limit, headroom),
        )
        answers = tuple(price(setting, spec) for spec in table.specs)
        return PricedTable(table, answers, name, environment_name)
    # Other models are captured, whose prices know PyTorch's own framework alone.
    if name != DEFAULT_FRAMEWORK or environment_name is not None:
        if isinstance(model, str):
            called = model
        else:
            called = "this model"
        strange = ", ".join(
            kind for kind in devices.kinds if not has_step_constants(kind)
        )
        raise InputError(
            f"--framework {name}: prices decoders of text that are known by their sizes, on "
            f"{', '.join(GPUS)}; "
            + (
                f"{strange}: has no constants of a step"
                if strange
                else f"leave it out for {called}"
            )
        )
    if progress is not None:
        progress("planning: capturing the model")
    if memory_limit is not None:
        devices = devices.each_device(memory=memory_limit)
    devices = cluster_with_headroom(devices, headroom)
    job = TrainingJob(
        model,
        inputs,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        lora=lora,
        accept_other_loss=accept_other_loss,
    )
    from gnnplace.plans import capture_chain

    answers = _price_captured(capture_chain(job, devices), devices, table)
    return PricedTable(table, answers, name, by_sizes=False)


def _limit(
    devices: Cluster, memory_limit: float | None, headroom: str | float | None
) -> float | None:
    """Return the bytes that a device may use, or None for what the framework leaves."""
    if headroom in (AUTO, None):
        return memory_limit
    if memory_limit is not None:
        devices = devices.each_device(memory=memory_limit)
    return float(cluster_with_headroom(devices, headroom).memory.min())


def _price_captured(
    chain: Chain, devices: Cluster, table: PlanTable
) -> tuple[PlanAnswer, ...]:
    """Price the rows of a table on one capture of the model."""
    from gnnplace.explaining import without_launches
    from gnnplace.plans import MeshFabric, price_given_plan

    answers = []
    for row in table.specs:
        spec = replace(row, batch=None, cuda_graphs=None)  # which the chain obeys
        if row.batch in (None, chain.batch):
            row_chain = chain
        else:
            row_chain = replace(chain, batch=row.batch)
        if row.cuda_graphs not in (None, "off"):
            row_chain = without_launches(row_chain, MeshFabric(devices))
        try:
            plan = price_given_plan(row_chain, devices, spec)
        except InputError as error:
            answers.append(PlanAnswer(reason=str(error)))
            continue
        states = [entry.state for entry in plan.file.memory.values()]
        totals = [entry.all - entry.slack for entry in plan.file.memory.values()]
        k = max(range(len(totals)), key=totals.__getitem__)
        low, high = plan.file.interval or (None, None)
        answers.append(
            PlanAnswer(
                plan.step_time,
                low,
                high,
                None,
                plan.feasible,
                plan.reason or "",
                states[k],
                states[0],
                states[-1],
                totals[k],
                totals[k],
                float(plan.feasible),
                None,
            )
        )
    return tuple(answers)
