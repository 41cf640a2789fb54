"""`PlacedStrategy`: Lightning's Trainer with forward, backward and update on placed workers.

Lightning's own loop does all the rest as on one device: `training_step` is run by the workers, its
loss has a `backward()` that gives the parameters their gradients, and `optimizer.step()` runs the
updates where the parameters are. Callbacks, loggers, clipping, accumulation, checkpoints and
validation see an ordinary module, optimizer and loss.

A captured step computes a loss and nothing else: it has no logger, trainer or batch index. So while
`training_step` is captured (`RecordedStep`), `log` only records what is logged. Reading the trainer
or the batch index is refused, because the value would be the same in every step.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import nn
from torch.utils.data import DataLoader

from gnnplace.costs import profile_model
from gnnplace.errors import ChangedWarning, InputError, UnsupportedError
from gnnplace.files import write_json
from gnnplace.lightning_names import find_trainer
from gnnplace.placing import DEFAULT_BUDGET, place
from gnnplace.problem import (
    OPTIONS_KEY,
    Cluster,
    Given,
    Placement,
    Problem,
    as_constraints,
    placement_to_data,
)
from gnnplace.run.training.training_step import TrainingStep
from gnnplace.run.training.training_step import compile as compile_step
from gnnplace.torch_names import pytree
from gnnplace.tracing import (
    CODE,
    NAMED,
    Attributes,
    CaptureOptions,
    as_inputs,
    capture_model,
)

Notes = list[tuple[str, Any, dict[str, Any]]]
"""What is logged: names, values, options of `log`."""
LOST = (
    "training_step {0}, which the workers do not compute: they give the loss alone; do that in "
    "validation_step"
)


@dataclass(frozen=True)
class Logged:
    """The values that `training_step` logs, and which of them are lost.

    Attributes:
        loss: Options of `log` by the names under which the loss is logged.
        lost: Whatever it does with numbers beside the loss, which the workers do not compute.
    """

    loss: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)

    def note(self, notes: Notes, loss: torch.Tensor) -> None:
        """Add what was logged while a loss was computed."""
        for name, value, options in notes:
            if value is loss:
                self.loss[name] = options
            else:
                self.lost[f"logs {name!r}"] = None

    def note_returned(self, returned: object, changed: tuple[str, ...]) -> None:
        """Add what was returned beside the loss, and attributes that were changed."""
        self.lost.update({f"changes {name!r}": None for name in changed})
        for name in returned if isinstance(returned, Mapping) else ():
            if name != "loss":
                self.lost[f"returns {name!r}"] = None

    def warn(self) -> None:
        """Warn of what is not logged."""
        for name in self.lost:
            warnings.warn(LOST.format(name), ChangedWarning, stacklevel=2)


class RecordedStep(nn.Module):
    """Calls `training_step` with a batch and returns the loss; its parts are the module's own.

    Args:
        module: The LightningModule; parameters keep their names in it.
        batch: A batch; others have its type.
        logged: Gets what is logged whenever the step is captured. (It is no attribute, since
            capturing a module leaves all that can be reached from it as it was.)
    """

    def __init__(self, module: LightningModule, batch: object, logged: Logged) -> None:
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules"):
            self.__dict__[part] = module.__dict__[part]
        self.__dict__[CODE] = module
        self._kind: type[Any] = type(batch)
        self._numbered = is_param_in_hook_signature(
            module.training_step, "batch_idx", min_args=2
        )
        self._note = lambda notes, loss: logged.note(notes, loss)
        self._note_returned = lambda returned, changed: logged.note_returned(
            returned, changed
        )

    def inputs(self, batch: object) -> object:
        """Return a batch as inputs of this module.

        Raises:
            InputError: a field of it is of a type that a captured step cannot take.
        """
        if type(batch) in NAMED or isinstance(batch, torch.Tensor):
            return batch
        if isinstance(batch, list | tuple) and type(batch) in (list, tuple):
            return tuple(batch)
        return as_inputs((batch,))

    def forward(self, *args: object, **kwargs: object) -> dict[str, torch.Tensor]:
        """Return the loss of a batch.

        Raises:
            InputError: `training_step` returns none.
        """
        __tracebackhide__ = True  # what fails is told where the module's own code is
        several = self._kind in (list, tuple)
        batch: object = kwargs or (self._kind(args) if several else args[0])
        module = self.__dict__[CODE]
        arguments = (batch, _Unknown("batch_idx")) if self._numbered else (batch,)
        attributes = Attributes(module, elsewhere=False)
        with _note_logs(module) as notes, attributes.restored(back=False):
            result = module.training_step(*arguments)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(loss, torch.Tensor):
            raise InputError(
                "PlacedStrategy: training_step returns no loss; return it, or a dict with 'loss'"
            )
        self._note(notes, loss)
        self._note_returned(result, attributes.changed)
        return {"loss": loss}


@contextmanager
def _note_logs(module: LightningModule) -> Iterator[Notes]:
    """Hide the trainer from a module, and note what it logs, within the context."""
    notes: Notes = []

    def log(name: str, value: object, *args: object, **options: object) -> None:
        bound = _LOG.bind(None, name, value, *args, **options).arguments
        notes.append((name, value, {k: bound[k] for k in list(bound)[3:]}))

    def log_dict(
        dictionary: Mapping[str, Any], *args: object, **options: object
    ) -> None:
        for name, value in dictionary.items():
            log(name, value, *args, **options)

    module.log, module.log_dict = log, log_dict  # type: ignore[assignment, method-assign]
    try:
        with _without_trainer(module):
            yield notes
    finally:
        del vars(module)["log"], vars(module)["log_dict"]


@contextmanager
def _without_trainer(module: LightningModule) -> Iterator[None]:
    """Hide the trainer, through which all of a run can be reached, within the context."""
    trainer = find_trainer(module)
    module.trainer = _Unknown("trainer")
    try:
        yield
    finally:
        module.trainer = trainer


_LOG = inspect.signature(LightningModule.log)


class _Unknown:
    """A stand-in for what a captured step cannot know; whoever reads it gets an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *args: object) -> NoReturn:
        __tracebackhide__ = True
        raise UnsupportedError(
            f"PlacedStrategy: training_step reads {self._name}, which is another one in every "
            "step, while a captured step is the same in all; leave it out, or make what depends "
            "on it a buffer that a hook changes"
        )

    def __getattr__(self, name: str) -> NoReturn:
        __tracebackhide__ = True
        self._refuse()

    __int__ = __float__ = __index__ = __bool__ = __hash__ = __str__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __rmod__ = _refuse


class PlacedStrategy(SingleDeviceStrategy):
    """Trains a LightningModule on the devices of a placement.

    The placement is one of `training_step` on the first batch. Without one, it is searched before
    that batch is trained.

    Args:
        placement: A placement, or the path of its file; None: search one.
        cluster: The cluster to place on, as `gnnplace.profile` takes it, if there is no placement.
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
        self._placement = placement
        self._cluster = cluster
        self._options: dict[str, Any] = {
            "microbatches": microbatches,
            "constraints": as_constraints(constraints),
        }
        self._search: dict[str, Any] = {
            "placer": placer,
            "budget": budget,
            "seed": seed,
        }
        self._output = output
        self._run: dict[str, Any] = {
            "mode": mode,
            "transport": transport,
            "timeout": timeout,
        }
        self._recorded: RecordedStep | None = None
        self.step: TrainingStep | None = None

    def setup(self, trainer: Trainer) -> None:
        """Check the module when the Trainer begins to fit.

        Raises:
            UnsupportedError: the module or the Trainer asks for what a placed step cannot do.
        """
        super().setup(trainer)
        self._trainer = trainer
        if trainer.state.fn == TrainerFn.FITTING:
            _refuse(self.lightning_module, self.precision_plugin.precision)

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        """Capture and place the step with the first batch.

        Raises:
            InputError: the loader's last batch will be shorter.
        """
        if self.step is None:
            _refuse_shorter(self._trainer)
            self._start(batch)

    def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the loss of a batch from the workers, and log it as `training_step` does."""
        assert self.step is not None
        assert self._recorded is not None
        loss = self.step.loss(self._recorded.inputs(args[0]))
        for name, options in self._logged.loss.items():
            self.lightning_module.log(name, loss, **options)
        return loss

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state, as the workers have it."""
        self._refresh()
        return super().lightning_module_state_dict()

    def on_validation_start(self) -> None:
        """Bring the module up to date."""
        self._refresh()

    def on_exception(self, exception: BaseException) -> None:
        """End the workers."""
        self._close()

    def teardown(self) -> None:
        """End the workers; the module has what was trained."""
        self._close()
        super().teardown()

    def _start(self, batch: object) -> None:
        module, (optimizer,) = self.lightning_module, self.optimizers
        self._logged = Logged()
        self._recorded = RecordedStep(module, batch, self._logged)
        inputs = self._recorded.inputs(batch)
        placement = self._placement
        problem = None
        with _without_trainer(module):  # what can be reached from it is looked through
            if placement is None:
                placement, problem = self._search_placement(
                    self._recorded, inputs, optimizer
                )
            self.step = compile_step(
                self._recorded,
                placement,
                optimizer,
                inputs=inputs,
                problem=problem,
                **self._run,
            )
        self._logged.warn()
        self.step.num_steps = self._trainer.fit_loop.total_batch_idx

    def _search_placement(
        self, model: RecordedStep, inputs: object, optimizer: torch.optim.Optimizer
    ) -> tuple[Placement, Problem]:
        """Search a placement of the step, and return it with its problem."""
        if type(optimizer) is torch.optim.SGD:
            priced_as = "sgd"
        else:
            priced_as = "adamw"
        options = CaptureOptions(optimizer=priced_as, **self._options)
        program = capture_model(model, inputs, options=options)
        problem = profile_model(program, self._cluster, options=options)
        placement = place(problem, **self._search).placement
        if self._output is not None:
            captured = {OPTIONS_KEY: options.to_data()}
            write_json(self._output, placement_to_data(placement, problem) | captured)
        return placement, problem

    def _refresh(self) -> None:
        if self.step is not None:
            self.step.refresh()

    def _close(self) -> None:
        if self.step is not None:
            self.step.close()
        self.step = None


def _refuse_shorter(trainer: Trainer) -> None:
    """Refuse loaders whose last batch is shorter, before anything is trained."""
    for loader in pytree.tree_leaves(trainer.train_dataloader):
        if (
            isinstance(loader, DataLoader)
            and loader.batch_size
            and not loader.drop_last
        ):
            if isinstance(loader.sampler, Sized):
                count = len(loader.sampler)
            else:
                count = 0
            if count % loader.batch_size and trainer.num_training_batches >= len(
                loader
            ):
                raise InputError(
                    f"PlacedStrategy: the last batch has {count % loader.batch_size} examples, the "
                    f"others {loader.batch_size}, and a captured step is of one shape; give "
                    "DataLoader(..., drop_last=True)"
                )


def _refuse(module: LightningModule, precision: str) -> None:
    """Refuse what the workers would not do.

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
