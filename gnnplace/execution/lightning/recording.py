"""`RecordedStep`: the `training_step` of a LightningModule as a module that can be captured.

A captured step has a loss and nothing else: no logger, no trainer, no number of the batch. So while
it is captured, `log` only notes what is logged, and whatever `training_step` reads of the trainer
or of the batch's number is refused, since it would be the same in every step.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningModule
from torch import nn

from gnnplace.errors import ChangedWarning, InputError, UnsupportedError

Notes = list[tuple[str, Any, dict[str, Any]]]
"""What is logged: names, values, options of `log`."""
LOST = (
    "training_step {0}, which the workers do not compute: they give the loss alone; do that in "
    "validation_step"
)


@dataclass(frozen=True)
class Logged:
    """What `training_step` logs.

    Attributes:
        loss: Options of `log` by the names under which the loss is logged.
        lost: What else it does with numbers, which the workers do not compute.
    """

    loss: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)

    def note(self, notes: Notes, loss: torch.Tensor) -> None:
        """Adds what was logged while a loss was computed."""
        for name, value, options in notes:
            if value is loss:
                self.loss[name] = options
            else:
                self.lost[f"logs {name!r}"] = None

    def returned(self, found: Any) -> None:
        """Adds what was returned beside the loss."""
        for name in found if isinstance(found, Mapping) else ():
            if name != "loss":
                self.lost[f"returns {name!r}"] = None

    def warn(self) -> None:
        """Says what is not logged."""
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

    def __init__(self, module: LightningModule, batch: Any, logged: Logged) -> None:
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules"):
            self.__dict__[part] = module.__dict__[part]
        self.__dict__["_lightning"] = module
        self._kind = type(batch)
        self._numbered = "batch_idx" in inspect.signature(module.training_step).parameters
        self._note = lambda notes, loss: logged.note(notes, loss)
        self._returned = lambda found: logged.returned(found)

    def inputs(self, batch: Any) -> Any:
        """A batch as inputs of this module.

        Raises:
            UnsupportedError: it is neither a tensor nor a list, tuple or dict of some.
        """
        if isinstance(batch, torch.Tensor | Mapping):
            return batch
        if type(batch) in (list, tuple):
            return tuple(batch)
        raise UnsupportedError(
            f"PlacedStrategy: a batch is a {type(batch).__name__}; give a tensor, or a list, "
            "tuple or dict of tensors"
        )

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The loss of a batch.

        Raises:
            InputError: `training_step` returns none.
        """
        __tracebackhide__ = True  # what fails is told where the module's own code is
        batch = kwargs or (args[0] if issubclass(self._kind, torch.Tensor) else self._kind(args))
        module = self.__dict__["_lightning"]
        given = (batch, _Unknown("batch_idx")) if self._numbered else (batch,)
        with _alone(module) as notes:
            found = module.training_step(*given)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(loss, torch.Tensor):
            raise InputError(
                "PlacedStrategy: training_step returns no loss; return it, or a dict with 'loss'"
            )
        self._note(notes, loss)
        self._returned(found)
        return {"loss": loss}


@contextmanager
def _alone(module: LightningModule) -> Iterator[Notes]:
    """Takes the trainer away, and notes what is logged."""
    notes: Notes = []

    def log(name: str, value: Any, *args: Any, **options: Any) -> None:
        bound = _LOG.bind(None, name, value, *args, **options).arguments
        notes.append((name, value, {k: bound[k] for k in list(bound)[3:]}))

    def log_dict(dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            log(name, value, *args, **options)

    trainer = module._trainer
    module.trainer = _Unknown("trainer")
    vars(module).update(log=log, log_dict=log_dict)
    try:
        yield notes
    finally:
        module.trainer = trainer
        del vars(module)["log"], vars(module)["log_dict"]


_LOG = inspect.signature(LightningModule.log)


class _Unknown:
    """Stands for what a captured step cannot know; whoever looks at it is told."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *args: Any) -> NoReturn:
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
