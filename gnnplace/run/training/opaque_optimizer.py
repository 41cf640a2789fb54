"""Optimizers of any class: their own code updates each parameter on the device that has it.

A worker calls the optimizer's own `step` for one parameter at a time: on a twin of the optimizer
(the same class and options) that has only this parameter, its gradient, its state from shared
memory and the current hyper-parameters of its group. So the result is what the class computes, to
the last bit, with all options.

That is right for optimizers that treat every parameter by itself. It is tried on copies of the
smallest parameters of every group, all together and each alone, with random gradients. An optimizer
is refused if its step needs or changes anything besides parameters and their states.
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
from gnnplace.run.training.state_layout import NUMBERS, StateLayout, format_path
from gnnplace.torch_names import pytree
from gnnplace.tracing import Optimizer, mean_gradient

TWIN_ATTRIBUTES = ("step", "state", "param_groups")
"""Attributes that a twin does not share; a scheduler replaces `step` in the optimizer it is of."""
TRIALS, SAMPLED = 3, 2
"""Steps of a trial; parameters of each group in it."""
Sample = list[tuple[int, torch.Tensor]]
"""Parameters, each with the number of its group."""


@dataclass(frozen=True)
class OpaqueOptimizer(Optimizer):
    """A captured optimizer whose update is the step of a `torch.optim` class, run as it is.

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

    def read_constants(
        self, group: Mapping[str, Any], number: int
    ) -> tuple[float, ...]:
        """Return the numbers among the options of a group, as they are now.

        Raises:
            UnsupportedError: another option has changed.
        """
        return self.options[number].read(group)

    def states(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        """Return the state tensors of a parameter, by label; two trial steps on a copy make them.

        Raises:
            UnsupportedError: a state that changes its form, or holds what is neither tensor nor
                number.
        """
        initial = self.optimizer.state.get(self.parameters[name], {})
        copy = parameter.detach().clone()
        twin = make_twin(self.optimizer, [(self.group[name], copy)], [initial])
        layouts = []
        for trial in range(2):
            try_step(self.optimizer, twin, [copy], trial)
            layouts.append(StateLayout.of(twin.state[copy], type(twin).__name__))
        layout = layouts[0]
        if layout.spec != layouts[1].spec:
            raise make_refusal(
                self.optimizer, "its state has another form after the second step"
            )
        self.layouts[name] = layout

        # Some optimizers have part of their state when they are made, and the rest after a step.
        is_complete = StateLayout.of(initial, type(twin).__name__).spec == layout.spec
        return layout.tensors(initial if is_complete else None, twin.state[copy])

    def get_update(self, name: str) -> Callable[..., None]:
        """Return the optimizer's step for one parameter."""
        number = self.group[name]
        return ParameterStep(
            optimizer=self.optimizer,
            group=number,
            layout=self.layouts[name],
            options=self.options[number],
            initial=clone_state(self.optimizer.state.get(self.parameters[name], {})),
        )


class ParameterStep:
    """The step of an optimizer on one parameter, wherever that lies.

    Args:
        optimizer: The optimizer; a twin of it does the step.
        group: The number of the parameter's group.
        layout: How the parameter's state lies in tensors.
        options: The options of the parameter's group.
        initial: State that the optimizer has before the parameter's first step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: int,
        layout: StateLayout,
        options: GroupOptions,
        initial: Mapping[str, Any],
    ) -> None:
        self._optimizer = optimizer
        self._group = group
        self._layout = layout
        self._options = options
        self._initial = initial
        self._twin: torch.optim.Optimizer | None = None
        self._written: tuple[float, ...] = ()

    def __call__(
        self,
        parameter: torch.Tensor,
        gradients: list[torch.Tensor],
        *state_and_constants: Any,
    ) -> None:
        """Update the parameter and its state.

        Args:
            parameter: The parameter, which is changed in place.
            gradients: One, or one for each micro-batch.
            *state_and_constants: A scalar tensor that says whether there is a state already, the
                tensors of the state, the constants of the group.
        """
        count = len(state_and_constants) - len(self._options.values)
        started, *tensors = state_and_constants[:count]
        constants = state_and_constants[count:]
        twin = self._get_twin(parameter)
        if constants != self._written:
            self._options.write(twin.param_groups[0], constants)
            self._written = constants
        if started.item():
            twin.state[parameter] = self._layout.state(tensors)
        else:
            twin.state[parameter] = self._initial_state(parameter)
        parameter.grad = mean_gradient(gradients)
        type(twin).step(twin)  # type: ignore[call-arg]
        parameter.grad = None
        self._layout.keep(twin.state.pop(parameter), tensors)
        started.fill_(1)

    def _initial_state(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state before the first step; scalars stay on the host, as in torch."""
        return {
            key: leaf.to(parameter.device)
            if isinstance(leaf, torch.Tensor) and leaf.dim() > 0
            else leaf
            for key, leaf in clone_state(self._initial).items()
        }

    def _get_twin(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        if self._twin is None:
            self._twin = make_twin(self._optimizer, [(self._group, parameter)])
        return self._twin


def stand_for_update(*tensors: torch.Tensor) -> None:
    """Stand for an update in a captured program until `OpaqueOptimizer.get_update` replaces it."""
    raise AssertionError("the optimizer's own step was not put in")


def capture_opaque_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    group: Mapping[str, int],
) -> OpaqueOptimizer:
    """Return the captured form of an optimizer of any class.

    Args:
        optimizer: The optimizer of these parameters.
        parameters: By their names in the model.
        group: The number of each parameter's group.

    Raises:
        UnsupportedError: a step that cannot be taken parameter by parameter; says why.
    """
    check_parameters_are_independent(optimizer)
    options = tuple(GroupOptions(group) for group in optimizer.param_groups)
    if len({len(group_options.values) for group_options in options}) > 1:
        raise make_refusal(optimizer, "its groups have different kinds of options")
    return OpaqueOptimizer(
        name=type(optimizer).__name__,
        update=stand_for_update,
        state=(),
        constants=options[0].values,
        optimizer=optimizer,
        parameters=parameters,
        group=group,
        options=options,
    )


class GroupOptions:
    """The options that a group of parameters had when it was compiled.

    Args:
        group: A parameter group, as `torch.optim` has it.

    Attributes:
        values: The numbers among the options.
    """

    def __init__(self, group: Mapping[str, Any]) -> None:
        self._keys = tuple(key for key in group if key != "params")
        options = self._select(group)
        self._leaves, self._spec = pytree.tree_flatten(options)
        number_leaves = []
        for i, leaf in enumerate(self._leaves):
            if _is_number(leaf):
                number_leaves.append(i)
        self._live = tuple(number_leaves)
        self.values = tuple(float(self._leaves[i]) for i in self._live)

    def read(self, group: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the numbers of a group as they are now.

        Raises:
            UnsupportedError: what is no number has changed.
        """
        leaves, spec = pytree.tree_flatten(self._select(group))
        changes = [
            f"{old!r} became {new!r}"
            for new, old in zip(leaves, self._leaves, strict=False)
            if not _is_number(old) and new is not old and new != old
        ]
        if spec != self._spec or changes:
            if changes:
                change = changes[0]
            else:
                change = "there are others"
            raise UnsupportedError(
                f"optimizer: options of its groups have changed since it was compiled ({change}); "
                "compile the step anew"
            )
        return tuple(float(leaves[i]) for i in self._live)

    def write(self, group: dict[str, Any], values: tuple[float, ...]) -> None:
        """Set the numbers of a group."""
        leaves = list(self._leaves)
        for i, value in zip(self._live, values, strict=True):
            is_whole_number = isinstance(leaves[i], int) and value.is_integer()
            leaves[i] = int(value) if is_whole_number else value
        group.update(pytree.tree_unflatten(leaves, self._spec))

    def _select(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a group that were there at first, with lists as tuples."""
        options = {key: group[key] for key in self._keys if key in group}
        return pytree.tree_map_only(
            list, tuple, options, is_leaf=lambda x: isinstance(x, list)
        )


def _is_number(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.dim() == 0
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


def check_parameters_are_independent(optimizer: torch.optim.Optimizer) -> None:
    """Try the step on copies of small parameters, all together and each alone.

    Raises:
        UnsupportedError: it needs a closure, raises, keeps anything outside of the parameters'
            states, or gives parameters other values when they are alone.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise make_refusal(
            optimizer, "its step needs a closure that computes the loss again"
        )
    sample = _sample_parameters(optimizer)
    states = [optimizer.state.get(parameter, {}) for _, parameter in sample]
    together = _copy_sample(sample)
    alone = _copy_sample(sample)
    joint_twin = make_twin(optimizer, together, states)
    single_twins = [
        make_twin(optimizer, [numbered], [state])
        for numbered, state in zip(alone, states, strict=True)
    ]
    for trial in range(TRIALS):
        try_step(optimizer, joint_twin, [parameter for _, parameter in together], trial)
        for k, twin in enumerate(single_twins):
            try_step(optimizer, twin, [alone[k][1]], trial, k)
    if not all(
        torch.equal(a, b) for (_, a), (_, b) in zip(together, alone, strict=True)
    ):
        raise make_refusal(
            optimizer, "a parameter's update depends on other parameters or on chance"
        )


def try_step(
    optimizer: torch.optim.Optimizer,
    twin: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    trial: int,
    first: int = 0,
) -> None:
    """Take one step of a twin with gradients drawn for the trial and the parameter's position.

    Args:
        optimizer: The optimizer that errors name.
        twin: The twin that steps.
        parameters: The parameters of the twin, which are changed in place.
        trial: The number of the trial.
        first: The position of the first parameter.

    Raises:
        UnsupportedError: it raises, or changes more than parameters and their states.
    """
    for k, parameter in enumerate(parameters, first):
        generator = torch.Generator().manual_seed(1000 * trial + k)
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.grad = torch.empty_like(parameter).copy_(drawn)
    attributes = _attributes(twin)
    addresses = [parameter.data_ptr() for parameter in parameters]
    try:
        with torch.random.fork_rng(devices=[]):
            type(twin).step(twin)  # type: ignore[call-arg]
    except Exception as error:
        raise make_refusal(
            optimizer, f"its step raises {type(error).__name__}: {error}"
        ) from None
    changed = [
        label
        for label, value in _attributes(twin).items()
        if label not in attributes or value != attributes[label]
    ]
    if changed:
        raise make_refusal(
            optimizer, f"its step changes {changed[0]}, which is not of one parameter"
        )
    if addresses != [parameter.data_ptr() for parameter in parameters]:
        raise make_refusal(
            optimizer, "its step gives parameters new memory instead of changing them"
        )


def make_twin(
    optimizer: torch.optim.Optimizer,
    parameters: Sample,
    states: list[Mapping[str, Any]] | None = None,
) -> torch.optim.Optimizer:
    """Return an optimizer of the same class, options and attributes with other parameters.

    Args:
        optimizer: The optimizer that is copied without its parameters.
        parameters: The parameters of the twin, each with the number of its group.
        states: The states that they begin with, copied; none by default.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__ |= {
        k: v for k, v in optimizer.__dict__.items() if k not in TWIN_ATTRIBUTES
    }
    twin.state = defaultdict(dict)
    numbers = sorted({group for group, _ in parameters})
    twin.param_groups = [
        {**optimizer.param_groups[n], "params": [p for g, p in parameters if g == n]}
        for n in numbers
    ]
    for (_, parameter), state in zip(parameters, states or (), strict=False):
        if state:
            twin.state[parameter] = clone_state(state)
    return twin


def clone_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter's state."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, dict(state))


def make_refusal(optimizer: torch.optim.Optimizer, reason: str) -> UnsupportedError:
    """Return the error that an optimizer's step cannot be placed, with what to do instead."""
    return UnsupportedError(
        f"optimizer {type(optimizer).__name__}: {' '.join(reason.split())}, so that it cannot be "
        "placed; compile with optimizer=None and call its own step"
    )


def _sample_parameters(optimizer: torch.optim.Optimizer) -> Sample:
    """Return the smallest trained parameters of every group, at most `SAMPLED` of other shapes."""
    sample: Sample = []
    for number, group in enumerate(optimizer.param_groups):
        shapes = {tuple(p.shape): p for p in group["params"] if p.requires_grad}
        small = sorted(shapes.values(), key=lambda p: (p.numel(), tuple(p.shape)))
        sample += [(number, parameter) for parameter in small[:SAMPLED]]
    return sample


def _copy_sample(sample: Sample) -> Sample:
    return [(group, parameter.detach().clone()) for group, parameter in sample]


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Return numbers, texts and tensors of an optimizer outside of its parameters' states."""
    tree = {
        "self": {k: v for k, v in vars(optimizer).items() if k not in TWIN_ATTRIBUTES},
        "param_groups": [
            {k: v for k, v in group.items() if k != "params"}
            for group in optimizer.param_groups
        ],
    }
    paths, _ = pytree.tree_flatten_with_path(tree)
    values = {format_path(path): _comparable(leaf) for path, leaf in paths}
    return {label: value for label, value in values.items() if value is not None}


def _comparable(leaf: object) -> object:
    """Return a leaf as what `==` compares; None if it is neither number, text nor tensor."""
    if isinstance(leaf, torch.Tensor):
        return leaf.tolist()
    if isinstance(leaf, (*NUMBERS, str)):
        return leaf
    return None
