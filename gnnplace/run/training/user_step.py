"""An optimizer of any class, whose own step updates each parameter on the device that has it.

A worker gives the optimizer's own code one parameter at a time: a twin of the optimizer (the same
class and options) with that parameter alone, its gradient, its state from shared memory and the
hyper-parameters of its group as they are now. So what is computed is what the class computes, to
the last bit, options included.

That is right for optimizers that treat every parameter by itself. It is tried: on copies of the
smallest parameters of every group, all together and each alone, with drawn gradients. What the step
needs or changes beside parameters and their states is a reason to refuse it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnnplace.errors import UnsupportedError
from gnnplace.run.training.state_layout import NUMBERS, StateLayout, label_of
from gnnplace.torch_names import pytree
from gnnplace.tracing import Optimizer, mean_gradient

APART = ("step", "state", "param_groups")
"""What a twin has for itself; a scheduler replaces `step` in the optimizer that it is of."""
TRIALS, SAMPLED = 3, 2
"""Steps of a trial; parameters of each group in it."""


@dataclass(frozen=True)
class OwnStep(Optimizer):
    """An optimizer that is captured as its own step.

    Attributes:
        optimizer: The optimizer, which stays as it is.
        parameters: Its parameters by their names in the model.
        group: The number of each parameter's group, by name.
        options: The options of each group.
        layouts: How the state of each parameter lies, filled while a model is captured.
    """

    optimizer: torch.optim.Optimizer
    parameters: Mapping[str, nn.Parameter]
    group: Mapping[str, int]
    options: tuple[GroupOptions, ...]
    layouts: dict[str, StateLayout] = field(default_factory=dict)

    def constants_now(self, group: Mapping[str, Any], number: int) -> tuple[float, ...]:
        """The numbers of a group as they are now.

        Raises:
            UnsupportedError: another option has changed.
        """
        return self.options[number].read(group)

    def states(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        """The state that its step makes; a trial on a copy finds which.

        Raises:
            UnsupportedError: a state that changes its form, or holds what is neither tensor nor
                number.
        """
        made = self.optimizer.state.get(self.parameters[name], {})
        twin, copy = alone(self.optimizer, parameter, self.group[name], made)
        forms = []
        for trial in range(2):
            try_step(self.optimizer, twin, [copy], trial)
            forms.append(StateLayout.of(twin.state[copy], type(twin).__name__))
        if forms[0].spec != forms[1].spec:
            raise refused(self.optimizer, "its state has another form after the second step")
        self.layouts[name] = forms[0]
        begun = StateLayout.of(made, type(twin).__name__)
        given = made if begun.spec == forms[0].spec else None
        return forms[0].tensors(given, twin.state[copy])

    def update_of(self, name: str) -> Callable[..., None]:
        """The optimizer's step for one parameter."""
        made = self.optimizer.state.get(self.parameters[name], {})
        number = self.group[name]
        layout, options = self.layouts[name], self.options[number]
        return ParameterStep(self.optimizer, number, layout, options, cloned(made))


class ParameterStep:
    """The step of an optimizer on one parameter, wherever that lies.

    Args:
        optimizer: The optimizer; a twin of it does the step.
        group: The number of the parameter's group.
        layout: How the parameter's state lies in tensors.
        options: The options of the parameter's group.
        made: State that the optimizer makes when it is made.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: int,
        layout: StateLayout,
        options: GroupOptions,
        made: Mapping[str, Any],
    ) -> None:
        self._optimizer, self._group, self._layout, self._made = optimizer, group, layout, made
        self._options = options
        self._twin: torch.optim.Optimizer | None = None
        self._written: tuple[float, ...] = ()

    def __call__(self, parameter: torch.Tensor, gradients: list[torch.Tensor], *rest: Any) -> None:
        """Updates the parameter and its state.

        Args:
            parameter: The parameter, which is changed in place.
            gradients: One, or one for each micro-batch.
            *rest: Whether there is a state already, its tensors, the constants of the group.
        """
        count = len(rest) - len(self._options.values)
        started, *tensors = rest[:count]
        twin = self._twin_of(parameter)
        if rest[count:] != self._written:
            self._options.write(twin.param_groups[0], rest[count:])
            self._written = rest[count:]
        begun = bool(started.item())
        twin.state[parameter] = self._layout.state(tensors) if begun else self._first(parameter)
        parameter.grad = mean_gradient(gradients)
        type(twin).step(twin)  # type: ignore[call-arg]
        parameter.grad = None
        self._layout.keep(twin.state.pop(parameter), tensors)
        started.fill_(1)

    def _first(self, parameter: torch.Tensor) -> dict[str, Any]:
        """The state that a parameter has before its first step."""
        return {key: on(leaf, parameter.device) for key, leaf in cloned(self._made).items()}

    def _twin_of(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        if self._twin is None:
            self._twin = twin_of(self._optimizer, [(self._group, parameter)])
        return self._twin


def on(value: Any, device: torch.device) -> Any:
    """A leaf of a state where its parameter lies; numbers stay on the host."""
    moves = isinstance(value, torch.Tensor) and value.dim() > 0
    return value.to(device) if moves else value


def own_update(*tensors: Any) -> None:
    """Stands for an update in a captured program until `OwnStep.update_of` takes its place."""
    raise AssertionError("the optimizer's own step was not put in")


def own_step(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    group: Mapping[str, int],
) -> OwnStep:
    """A captured optimizer of any class.

    Args:
        optimizer: The optimizer of these parameters.
        parameters: By their names in the model.
        group: The number of each parameter's group.

    Raises:
        UnsupportedError: a step that cannot be taken parameter by parameter; says why.
    """
    refuse_odd_steps(optimizer)
    options = tuple(GroupOptions(group) for group in optimizer.param_groups)
    if len({len(one.values) for one in options}) > 1:
        raise refused(optimizer, "its groups have different kinds of options")
    name, first = type(optimizer).__name__, options[0].values
    return OwnStep(name, own_update, (), first, optimizer, parameters, group, options)


class GroupOptions:
    """The options that a group of parameters had when it was compiled.

    Args:
        group: As `torch.optim` has it.

    Attributes:
        values: The numbers among the options.
    """

    def __init__(self, group: Mapping[str, Any]) -> None:
        self._keys = tuple(key for key in group if key != "params")
        self._leaves, self._spec = pytree.tree_flatten(self._own(group))
        self._live = tuple(i for i, leaf in enumerate(self._leaves) if _is_number(leaf))
        self.values = tuple(float(self._leaves[i]) for i in self._live)

    def read(self, group: Mapping[str, Any]) -> tuple[float, ...]:
        """The numbers of a group now.

        Raises:
            UnsupportedError: what is no number has changed.
        """
        leaves, spec = pytree.tree_flatten(self._own(group))
        pairs = list(zip(leaves, self._leaves, strict=False))
        odd = [(a, b) for a, b in pairs if not _is_number(b) and a is not b and a != b]
        if spec != self._spec or odd:
            what = f"{odd[0][1]!r} became {odd[0][0]!r}" if odd else "there are others"
            raise UnsupportedError(
                f"optimizer: options of its groups have changed since it was compiled ({what}); "
                "compile the step anew"
            )
        return tuple(float(leaves[i]) for i in self._live)

    def write(self, group: dict[str, Any], values: tuple[float, ...]) -> None:
        """Gives a group these numbers."""
        leaves = list(self._leaves)
        for i, value in zip(self._live, values, strict=True):
            whole = isinstance(leaves[i], int) and value.is_integer()
            leaves[i] = int(value) if whole else value
        group.update(pytree.tree_unflatten(leaves, self._spec))

    def _own(self, group: Mapping[str, Any]) -> dict[str, Any]:
        own = {key: group[key] for key in self._keys if key in group}
        return pytree.tree_map_only(list, tuple, own, is_leaf=lambda x: isinstance(x, list))


def _is_number(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.dim() == 0
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


def refuse_odd_steps(optimizer: torch.optim.Optimizer) -> None:
    """Tries the step on copies of small parameters, together and apart.

    Raises:
        UnsupportedError: it needs a closure, raises, keeps anything outside of the parameters'
            states, or gives parameters other values when they are alone.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise refused(optimizer, "its step needs a closure that computes the loss again")
    chosen = _sample(optimizer)
    together = [(g, p.detach().clone()) for g, p in chosen]
    apart = [(g, p.detach().clone()) for g, p in chosen]
    made = [optimizer.state.get(p, {}) for _, p in chosen]
    whole = twin_of(optimizer, together, made)
    singles = [twin_of(optimizer, [pair], [m]) for pair, m in zip(apart, made, strict=True)]
    for trial in range(TRIALS):
        try_step(optimizer, whole, [p for _, p in together], trial)
        for k, twin in enumerate(singles):
            try_step(optimizer, twin, [apart[k][1]], trial, k)
    if not all(torch.equal(a, b) for (_, a), (_, b) in zip(together, apart, strict=True)):
        raise refused(optimizer, "a parameter's update depends on other parameters or on chance")


def try_step(
    optimizer: torch.optim.Optimizer,
    twin: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    trial: int,
    first: int = 0,
) -> None:
    """One step of a twin with gradients drawn for the trial and the parameter's position.

    Raises:
        UnsupportedError: it raises, or changes more than parameters and their states.
    """
    for k, parameter in enumerate(parameters, first):
        generator = torch.Generator().manual_seed(1000 * trial + k)
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.grad = torch.empty_like(parameter).copy_(drawn)
    before, places = _outside(twin), [p.data_ptr() for p in parameters]
    try:
        with torch.random.fork_rng(devices=[]):
            type(twin).step(twin)  # type: ignore[call-arg]
    except Exception as error:
        raise refused(optimizer, f"its step raises {type(error).__name__}: {error}") from None
    after = _outside(twin)
    changed = [key for key in after if key not in before or after[key] != before[key]]
    if changed:
        raise refused(optimizer, f"its step changes {changed[0]}, which is not of one parameter")
    if places != [p.data_ptr() for p in parameters]:
        raise refused(optimizer, "its step gives parameters new memory instead of changing them")


def alone(
    optimizer: torch.optim.Optimizer, tensor: torch.Tensor, group: int, made: Mapping[str, Any]
) -> tuple[torch.optim.Optimizer, torch.Tensor]:
    """A twin with a copy of one parameter, and the copy."""
    copy = tensor.detach().clone()
    return twin_of(optimizer, [(group, copy)], [made]), copy


def twin_of(
    optimizer: torch.optim.Optimizer,
    parameters: list[tuple[int, torch.Tensor]],
    made: list[Mapping[str, Any]] | None = None,
) -> torch.optim.Optimizer:
    """An optimizer of the same class, options and attributes with other parameters.

    Args:
        optimizer: The optimizer that is copied without its parameters.
        parameters: Each with the number of its group.
        made: The states that they begin with, copied; none by default.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__ |= {k: v for k, v in optimizer.__dict__.items() if k not in APART}
    twin.state = defaultdict(dict)
    numbers = sorted({group for group, _ in parameters})
    twin.param_groups = [
        {**optimizer.param_groups[n], "params": [p for g, p in parameters if g == n]}
        for n in numbers
    ]
    for (_, parameter), state in zip(parameters, made or (), strict=False):
        if state:
            twin.state[parameter] = cloned(state)
    return twin


def cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, dict(state))


def refused(optimizer: torch.optim.Optimizer, why: str) -> UnsupportedError:
    """An optimizer whose step cannot be placed, and what else can be done."""
    return UnsupportedError(
        f"optimizer {type(optimizer).__name__}: {' '.join(why.split())}, so that it cannot be "
        "placed; compile with optimizer=None and call its own step"
    )


def _sample(optimizer: torch.optim.Optimizer) -> list[tuple[int, torch.Tensor]]:
    """The smallest parameters of every group, two different shapes where there are."""
    found = []
    for number, group in enumerate(optimizer.param_groups):
        shapes = {tuple(p.shape): p for p in group["params"] if p.requires_grad}
        small = sorted(shapes.values(), key=lambda p: (p.numel(), tuple(p.shape)))
        found += [(number, p) for p in small[:SAMPLED]]
    return found


def _outside(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Numbers and tensors of an optimizer beside its parameters' states, to be compared."""
    about: dict[str, Any] = {"self": {k: v for k, v in vars(optimizer).items() if k not in APART}}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    about["param_groups"] = groups
    paths, _ = pytree.tree_flatten_with_path(about)
    plain = {label_of(path): _plain(leaf) for path, leaf in paths}
    return {label: value for label, value in plain.items() if value is not None}


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.tolist()
    return leaf if isinstance(leaf, (*NUMBERS, str)) else None
