"""``Workbench``: one model on one cluster to measure placements of, for whoever tunes them.

What `trainers/measured.yaml` names as its objective. Nothing happens before the problem or a
measurement is asked for: then the model is captured and profiled, once.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gnnplace.costs import profile_model
from gnnplace.files import write_json
from gnnplace.measurements import Measured, StepObjective, open_store
from gnnplace.problem import OPTIONS_KEY, Placement, Problem, placement_to_data
from gnnplace.tracing import CaptureOptions, capture_model

if TYPE_CHECKING:
    from gnnplace.run.measuring import MeasuredObjective
    from gnnplace.tracing import Program


@dataclass(frozen=True)
class CaptureSettings:
    """Settings of the capture of a workbench's model.

    Attributes:
        microbatches: Micro-batches that the batch is cut into.
        optimizer: The optimizer of the step, ``sgd`` or ``adamw``.
        dtype: The element type of the model, ``float32`` or ``bfloat16``.
        groups: Ops of the problem to aim at; None: all of them.
    """

    microbatches: int = 1
    optimizer: str = "sgd"
    dtype: str = "float32"
    groups: int | None = None


@dataclass(frozen=True)
class MeasurementSettings:
    """Settings of the measurements of a workbench.

    Attributes:
        mode: ``measured``, ``emulated`` or ``auto``.
        steps: Steps of a measurement.
        transport: How tensors travel, ``shm`` or ``gloo``.
        timeout: Seconds without progress after which a placement has failed.
        clock: ``wall``, ``virtual``, or None: by the mode, and virtual of a run that other
            programs disturbed from beginning to end.
        parallel: Measurements at a time; None for as many as there are cores for.
        check: Whether a placement that computes something else than one device has failed.
    """

    mode: str = "auto"
    steps: int = 7
    transport: str = "shm"
    timeout: float = 60.0
    clock: str | None = None
    parallel: int | None = None
    check: bool = True


@dataclass(frozen=True)
class StoreSettings:
    """Settings of the store of a workbench.

    Attributes:
        url: Where every run goes and earlier ones are found: a path or URL, ``none``, or None for
            the usual store.
        label: What the store calls the model: runs of another label are not found.
        max_age_hours: Hours after which a placement is measured again; None: never.
    """

    url: str | None = None
    label: str | None = None
    max_age_hours: float | None = 24.0


DEFAULT_CAPTURE = CaptureSettings()
DEFAULT_MEASUREMENT = MeasurementSettings()
DEFAULT_STORE = StoreSettings()


class Workbench(StepObjective):
    """A measuring environment for placements of a model.

    Args:
        model: A zoo name, ``hf:CONFIG`` or ``module:callable``.
        cluster: ``cpu:N``, ``cuda:N``, ``auto``, a preset or a YAML file.
        capture: How the model is captured.
        measurement: How placements are measured.
        store: The store of measurements.
    """

    def __init__(
        self,
        model: str,
        cluster: str = "cpu:2",
        *,
        capture: CaptureSettings = DEFAULT_CAPTURE,
        measurement: MeasurementSettings = DEFAULT_MEASUREMENT,
        store: StoreSettings = DEFAULT_STORE,
    ) -> None:
        self.options = CaptureOptions(
            optimizer=capture.optimizer,
            dtype=capture.dtype,
            groups=capture.groups,
            microbatches=capture.microbatches,
        )
        self._model = model
        self._cluster = cluster
        self._measurement = measurement
        self._store = store

    @cached_property
    def program(self) -> Program:
        """Return the captured model, at 1/M of its batch."""
        return capture_model(self._model, options=self.options)

    @cached_property
    def _problem(self) -> Problem:
        return profile_model(self.program, self._cluster, options=self.options)

    @property
    def problem(self) -> Problem:
        """Return the problem, as it was profiled."""
        return self._problem

    @property
    def name(self) -> str:
        """Return the name of the model in the store."""
        return self._store.label or self._model

    @cached_property
    def objective(self) -> MeasuredObjective:
        """Return the objective that runs placements."""
        from gnnplace.run.measuring import MeasuredObjective
        from gnnplace.run.placed import ExecutionOptions, RecordOptions

        settings = self._measurement
        url = self._store.url
        hours = self._store.max_age_hours
        return MeasuredObjective(
            self.program,
            run=ExecutionOptions(
                steps=settings.steps,
                mode=settings.mode,
                transport=settings.transport,
                timeout=settings.timeout,
            ),
            record=RecordOptions(store=open_store(url), label=self.name),
            clock=settings.clock,
            check=settings.check,
            max_age=None if hours is None else 3600.0 * hours,
        )

    def with_label(self, label: str) -> Workbench:
        """Return the same model with measurements of its own: by another name in the store."""
        workbench = copy.copy(self)
        workbench._store = replace(self._store, label=label)
        workbench.__dict__.pop("objective", None)
        return workbench

    def measure(self, placements: Sequence[Placement]) -> list[Measured]:
        """Run placements that are not known, and say if other programs had the cores meanwhile.

        See `StepObjective`.
        """
        at_once = self._measurement.parallel or self.room
        results = self.objective.measure_all(self.problem, placements, at_once)
        num_disturbed = sum(
            result.disturbed and not result.stored for result in results
        )
        if num_disturbed:
            sys.stderr.write(
                f"note: other programs had the cores in every step of {num_disturbed} of "
                f"{len(results)} measurements; the workers' own time counts (the virtual clock)\n"
            )
        return results

    @property
    def room(self) -> int:
        """Return how many placements on all devices the cores of this process can run at a time."""
        from gnnplace.run.workers import available_cores

        kinds = [device.kind for device in self.problem.cluster.devices]
        if any(kind != "cpu" for kind in kinds):
            return 1  # devices that are no cores are there once
        return max(1, len(available_cores()) // len(kinds))

    def keep(self, path: str | Path, placement: Placement) -> None:
        """Write a placement with the options that the model was captured by."""
        data = placement_to_data(placement, self.problem)
        write_json(path, data | {OPTIONS_KEY: self.options.to_data()})
