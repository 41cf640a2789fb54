"""`PlacedStrategy`: Lightning's Trainer with forward, backward and update on placed workers.

Lightning's own loop does all the rest as on one device: `training_step` is run by the workers, its
loss has a `backward()` that gives the parameters their gradients, and `optimizer.step()` runs the
updates where the parameters are. Callbacks, loggers, clipping, accumulation, checkpoints and
validation see an ordinary module, optimizer and loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn

from gnnplace.costs.profiling.problems import profile_model
from gnnplace.errors import UnsupportedError
from gnnplace.execution import TrainingStep
from gnnplace.execution import compile as compile_step
from gnnplace.execution.lightning.recording import Logged, RecordedStep
from gnnplace.files import write_json
from gnnplace.policy.placing import DEFAULT_BUDGET, place
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.constraints.constraints import Given, as_constraints
from gnnplace.problem.placement import OPTIONS_KEY, Placement, placement_to_data
from gnnplace.tracing.models import capture_model
from gnnplace.tracing.options import CaptureOptions


class PlacedStrategy(SingleDeviceStrategy):
    """Trains a LightningModule on the devices of a placement.

    The placement is one of `training_step` on the first batch. Without one, it is searched before
    that batch is trained.

    Args:
        placement: A placement, or the path of its file; None: search one.
        cluster: Where to place, as `gnnplace.profile` takes it; without a placement.
        microbatches: Shares that every batch is cut into; without a placement.
        placer: Searches; without a placement.
        budget: Seconds to search; without a placement.
        seed: The seed of the search.
        constraints: What is asked of the answer, as `gnnplace.place` takes it.
        output: A file to write the placement to, which can be given as `placement` next time.
        mode: "measured", "emulated" or "auto"; see `gnnplace.execute`.
        transport: "shm" or "gloo".
        timeout: Seconds without progress after which a step is given up.
    """

    strategy_name = "placed"

    def __init__(
        self,
        placement: Placement | str | Path | None = None,
        *,
        cluster: str | Cluster = "auto",
        microbatches: int = 1,
        placer: str = "best",
        budget: float = DEFAULT_BUDGET,
        seed: int = 0,
        constraints: Given | None = None,
        output: str | Path | None = None,
        mode: str = "auto",
        transport: str = "shm",
        timeout: float = 120.0,
    ) -> None:
        super().__init__(device="cpu")
        self._placement, self._cluster = placement, cluster
        self._options: dict[str, Any] = {
            "microbatches": microbatches,
            "constraints": as_constraints(constraints),
        }
        self._search: dict[str, Any] = {"placer": placer, "budget": budget, "seed": seed}
        self._output = output
        self._run: dict[str, Any] = {"mode": mode, "transport": transport, "timeout": timeout}
        self._recorded: RecordedStep | None = None
        self.step: TrainingStep | None = None

    def setup(self, trainer: Trainer) -> None:
        """Called by the Trainer.

        Raises:
            UnsupportedError: the module or the Trainer asks for what a placed step cannot do.
        """
        super().setup(trainer)
        self._trainer = trainer
        if trainer.state.fn == TrainerFn.FITTING:
            _refuse(self.lightning_module, self.precision_plugin.precision)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Captures and places the step with the first batch."""
        if self.step is None:
            self._start(batch)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of a batch, from the workers; logged as `training_step` logs it."""
        assert self.step is not None
        assert self._recorded is not None
        loss = self.step.loss(self._recorded.inputs(args[0]))
        for name, options in self._logged.loss.items():
            self.lightning_module.log(name, loss, **options)
        return loss

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's state, as the workers have it."""
        self._refresh()
        return super().lightning_module_state_dict()

    def on_validation_start(self) -> None:
        """Brings the module up to date."""
        self._refresh()

    def on_exception(self, exception: BaseException) -> None:
        """Ends the workers."""
        self._close()

    def teardown(self) -> None:
        """Ends the workers; the module has what was trained."""
        self._close()
        super().teardown()

    def _start(self, batch: Any) -> None:
        module, (optimizer,) = self.lightning_module, self.optimizers
        self._logged = Logged()
        self._recorded = RecordedStep(module, batch, self._logged)
        inputs = self._recorded.inputs(batch)
        placement, problem = self._placement, None
        if placement is None:
            placement, problem = self._placed(self._recorded, inputs, optimizer)
        self.step = compile_step(
            self._recorded, placement, optimizer, inputs=inputs, problem=problem, **self._run
        )
        self._logged.warn()
        self.step.num_steps = self._trainer.fit_loop.total_batch_idx

    def _placed(
        self, model: RecordedStep, inputs: Any, optimizer: torch.optim.Optimizer
    ) -> tuple[Placement, Problem]:
        """A placement of the step, searched now, and its problem."""
        kept = "sgd" if type(optimizer) is torch.optim.SGD else "adamw"
        options = CaptureOptions(optimizer=kept, **self._options)
        program = capture_model(model, inputs, options=options)
        problem = profile_model(program, self._cluster, options=options)
        found = place(problem, **self._search).placement
        if self._output is not None:
            about = {OPTIONS_KEY: options.to_data()}
            write_json(self._output, placement_to_data(found, problem) | about)
        return found, problem

    def _refresh(self) -> None:
        if self.step is not None:
            self.step.refresh()

    def _close(self) -> None:
        if self.step is not None:
            self.step.close()
        self.step = None


def _refuse(module: LightningModule, precision: str) -> None:
    """Refuses what the workers would not do.

    Raises:
        UnsupportedError: says what, and what to do instead.
    """
    if not module.automatic_optimization:
        raise UnsupportedError(
            "PlacedStrategy: the module optimizes by hand (automatic_optimization=False), and its "
            "own calls of backward and step cannot be captured; use gnnplace.compile in a loop"
        )
    if precision != "32-true":
        raise UnsupportedError(
            f"PlacedStrategy: precision={precision!r}; workers compute in the types that the "
            "module has (32-true); use torch.autocast inside training_step"
        )
