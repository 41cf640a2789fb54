"""Options of a group of parameters: numbers, which may change between steps, and all the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gnnplace.errors import UnsupportedError


class GroupOptions:
    """The options that a group of parameters had when it was compiled.

    Args:
        group: As `torch.optim` has it.

    Attributes:
        values: Its numbers.
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
