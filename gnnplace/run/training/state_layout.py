"""How the state that an optimizer keeps of a parameter lies in tensors of fixed shapes.

An optimizer makes that state in its first step, as nested dicts and lists of tensors and numbers.
Here every tensor and every number has a tensor of its own, so that they can lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from gnnplace.errors import UnsupportedError
from gnnplace.torch_names import pytree

STARTED = "started"
"""State of every parameter: 1 if its optimizer has made its state, else 0."""
NUMBERS = (int, float)


@dataclass(frozen=True)
class StateLayout:
    """The layout of a parameter's optimizer state in tensors.

    Attributes:
        spec: The structure of the state.
        names: A name for each of its leaves.
        kinds: Types of the leaves.
        fixed: Leaves that are neither tensor nor number, by position.
    """

    spec: pytree.TreeSpec
    names: tuple[str, ...]
    kinds: tuple[type, ...]
    fixed: Mapping[int, Any]

    @classmethod
    def of(cls, state: Mapping[str, Any], who: str) -> StateLayout:
        """Return the layout of a state.

        Raises:
            UnsupportedError: a leaf that cannot be kept in a tensor.
        """
        paths, spec = pytree.tree_flatten_with_path(_sorted(state))
        names = [format_path(path) for path, _ in paths]
        leaves = [leaf for _, leaf in paths]
        fixed = {
            i: x
            for i, x in enumerate(leaves)
            if not isinstance(x, (torch.Tensor, *NUMBERS))
        }
        unsupported = [
            names[i]
            for i, leaf in fixed.items()
            if not isinstance(leaf, (str, type(None)))
        ]
        if unsupported:
            raise UnsupportedError(
                f"optimizer {who}: its state {unsupported[0]!r} is neither a tensor nor a number"
            )
        return cls(spec, tuple(names), tuple(map(type, leaves)), fixed)

    def tensors(
        self, state: Mapping[str, Any] | None, like: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Return `STARTED` and tensors of a state: copies of `state`, else zeros as in `like`."""
        leaves = pytree.tree_leaves(_sorted(like if state is None else state))
        tensors = {STARTED: torch.tensor(float(state is not None))}
        for i, (name, leaf) in enumerate(zip(self.names, leaves, strict=True)):
            if i not in self.fixed:
                if isinstance(leaf, torch.Tensor):
                    value = leaf
                else:
                    value = torch.tensor(float(leaf)).double()
                tensors[name] = (
                    value.clone() if state is not None else torch.zeros_like(value)
                )
        return tensors

    def state(self, tensors: list[torch.Tensor]) -> dict[str, Any]:
        """Return a state whose tensors are these; numbers are read from theirs."""
        if self._plain:
            return dict(zip(self.names, tensors, strict=True))
        remaining = iter(tensors)
        leaves = [
            self.fixed[i] if i in self.fixed else self._leaf(i, next(remaining))
            for i in self._all
        ]
        state: dict[str, Any] = pytree.tree_unflatten(leaves, self.spec)
        return state

    def keep(self, state: Mapping[str, Any], tensors: list[torch.Tensor]) -> None:
        """Write a state into its tensors, unless it is in them already.

        Raises:
            ValueError: it has other entries.
        """
        if self._plain and state.keys() == set(self.names):
            leaves = [state[name] for name in self.names]
            spec = self.spec
        else:
            leaves, spec = pytree.tree_flatten(_sorted(state))
        if spec != self.spec:
            raise ValueError(f"its entries are {', '.join(state) or 'none'}")
        variable = [leaf for i, leaf in enumerate(leaves) if i not in self.fixed]
        for leaf, tensor in zip(variable, tensors, strict=True):
            if not isinstance(leaf, torch.Tensor):
                tensor.fill_(leaf)
            elif leaf is not tensor:
                tensor.copy_(leaf)

    @cached_property
    def _plain(self) -> bool:
        """Return whether the state is a flat dict of tensors, as in most optimizers."""
        flat = list(self.spec.context or ()) == list(self.names)
        return flat and all(issubclass(kind, torch.Tensor) for kind in self.kinds)

    @property
    def _all(self) -> range:
        return range(len(self.kinds))

    def _leaf(self, position: int, tensor: torch.Tensor) -> torch.Tensor | int | float:
        kind = self.kinds[position]
        if issubclass(kind, NUMBERS):
            return kind(tensor.item())
        return tensor


def format_path(path: tuple[Any, ...]) -> str:
    """Return a path through nested dicts and lists as text, such as "history.0"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)


def _sorted(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: state[key] for key in sorted(state)}
