"""`TrainingJob` and `SearchOptions`: what is trained, and how its plan is searched.

Public verbs take these fields as keyword arguments and build the records at once; all functions
behind them take the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from gnnplace.costs import PARAMETER, get_optimizer_kind, parse_offloading
from gnnplace.errors import InputError
from gnnplace.models import find_model
from gnnplace.plans.decoders.adapters import parse_adapters
from gnnplace.plans.spec import PlanSpec
from gnnplace.problem import Constraints, SearchGoal

if TYPE_CHECKING:
    import torch
    from torch import nn

Progress = Callable[[str], None]
CAPTURING = "planning: capturing the model"
"""What is said while a model is captured to be planned."""
MODES = (
    "compile",
    "tp_overlap",
    "gradients",
    "cuda_graphs",
    "offload",
    "sample_length",
)
"""Words of a plan that are not searched; all plans of a search may have them."""
GOALS = (SearchGoal.TIME, SearchGoal.GPUS, SearchGoal.MEMORY)
MAX_IMBALANCE = 64.0


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A model with its batch, precision and optimizer, whatever the cluster and the plan.

    Attributes:
        model: `module:callable`, `hf:CONFIG`, a name of the zoo, or a module with `inputs`.
        inputs: Example inputs of a module: a tensor, a tuple or a mapping.
        loss: Called with the model's output and the last inputs; None: the output is the loss.
        batch: Examples of a step over all devices; None: those of the example inputs.
        precision: Precision of parameters and passes, in Lightning's words; None: the framework's
            usual one.
        optimizer: The optimizer, one of `costs.optimizers`; None: "adamw".
        lora: Low-rank adapters that are trained instead of the parameters, as "r=16" or
            "r=16,bits=4" (`decoders.adapters`); None: all parameters are trained.
        accept_other_loss: Whether the batch may be cut where its loss is another one then, or
            nothing proves that it is not.
        imbalance: Rows of the fullest of several devices with experts, as a multiple of the mean.

    Raises:
        InputError: If the precision, the optimizer or a word of the adapters is unknown, or the
            imbalance is out of range.
    """

    model: str | nn.Module
    inputs: Any = None
    _: KW_ONLY
    loss: Callable[..., torch.Tensor] | None = None
    batch: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    lora: str | None = None
    accept_other_loss: bool = False
    imbalance: float = 1.0

    @property
    def defaults(self) -> tuple[str, ...]:
        """Return the options that are left to their defaults."""
        words = []
        if self.batch is None:
            words.append("batch")
        if isinstance(self.model, str) and "length=" not in self.model:
            row = find_model(self.model.partition("?")[0])
            if self.model.startswith("hf:") if row is None else row.length is not None:
                words.append("length")
        if self.precision is None:
            words.append("precision")
        if self.optimizer is None:
            words.append("optimizer")
        return tuple(words)

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PARAMETER:
            is_eight_bit = re.search("fp8|float8|8-", self.precision) is not None
            reason = "products in FP8 are not priced" if is_eight_bit else "unknown"
            raise InputError(
                f"precision {self.precision!r}: {reason}; use one of {', '.join(PARAMETER)}"
            )
        if self.optimizer is not None:
            get_optimizer_kind(self.optimizer)
        if self.lora is not None:
            parse_adapters(self.lora)
        if not 1.0 <= self.imbalance <= MAX_IMBALANCE:
            raise InputError(
                f"imbalance {self.imbalance:g}: must be from 1, experts with equally many rows, to "
                f"{MAX_IMBALANCE:g}"
            )


@dataclass(frozen=True)
class SearchOptions:
    """What a search for plans may take and must obey.

    Attributes:
        budget: Seconds that it may take.
        top: Plans that are answered at most.
        tries: Plans that are run for a few steps on the devices that are here, the one with the
            shortest measured step first; 0 runs nothing.
        runnable: Whether only plans are searched that can be run, with as many replicas in every
            stage.
        constraints: Pins and forbids of layers, devices at most.
        goal: "time", the fastest plan; "gpus", the fastest on as few devices as hold any; or
            "memory", that with the least bytes on its fullest device.
        rate: Tokens a second (examples, where these are no tokens) that the goals "gpus" and
            "memory" must reach.
        trades: What plans that are answered besides trade for time: "memory" or "gpus"; None:
            nothing.
        modes: Words that every plan has, of those in `MODES`; None: none.
        launcher: The only launcher that must be able to run the plan; None: any.
        framework: The only framework that must train it; None: any.
        environment: An environment of that framework, such as "checked-collectives".

    Raises:
        InputError: If a value is out of range.
    """

    budget: float = 10.0
    top: int = 1
    tries: int = 0
    runnable: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    goal: str = SearchGoal.TIME
    rate: float | None = None
    trades: str | None = None
    modes: PlanSpec | None = None
    launcher: str | None = None
    framework: str | None = None
    environment: str | None = None

    def __post_init__(self) -> None:
        if self.top < 1 or self.goal not in GOALS or not self.budget >= 0:
            allowed = f"at least 1; one of {', '.join(GOALS)}; not negative"
            raise InputError(
                f"top {self.top}, goal {self.goal!r}, budget {self.budget}: {allowed}"
            )
        if self.rate is not None and (
            self.goal == SearchGoal.TIME or not self.rate > 0
        ):
            raise InputError(
                f"rate {self.rate:g}: is a positive number, for the goals "
                f"{str(SearchGoal.GPUS)!r} and {str(SearchGoal.MEMORY)!r} alone"
            )
        if self.modes is not None and self.modes != select_modes(self.modes):
            raise InputError(f"modes {self.modes}: may have {', '.join(MODES)} alone")
        if self.modes is not None and parse_offloading(self.modes.offload).activations:
            # What is recomputed need not be copied: the least recomputation may not be the fastest.
            raise InputError(
                f"modes offload={self.modes.offload}: is priced with --given, and not searched"
            )
        if self.trades not in (None, SearchGoal.GPUS, SearchGoal.MEMORY):
            raise InputError(
                f"pareto {self.trades!r}: must be one of {SearchGoal.MEMORY}, {SearchGoal.GPUS}"
            )
        if self.constraints.max_memory:
            raise InputError(
                "max-memory: a plan's devices are alike; give memory_limit"
            )

    @property
    def is_of_words(self) -> bool:
        """Return whether the question is about plans in words, of a model known by its sizes."""
        words = (
            self.launcher,
            self.framework,
            self.environment,
            self.trades,
            self.modes,
        )
        return self.goal == SearchGoal.MEMORY or words != (None,) * len(words)


def select_modes(plan: PlanSpec) -> PlanSpec:
    """Return a plan with those of its words alone that are modes."""
    return PlanSpec(**{name: getattr(plan, name) for name in MODES})
