"""Recordings of a part of one call: kernels of its passes, and what it keeps for backward.

The call runs on fake tensors of a device's shards of its operands, under a dispatch mode. Then its
gradients run twice: with respect to the results of other calls (I), and with respect to everything.
The difference between the two is the time of the gradients of weights (W). Only those of products
(`QUEUED`) can be delayed; all others count with I.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from gnnplace.arrays import FloatArray
from gnnplace.costs import Description, describe
from gnnplace.run.split import run_part
from gnnplace.sharding import Configuration
from gnnplace.torch_names import FakeTensor, FakeTensorMode, pytree
from gnnplace.tracing import (
    BACKWARD,
    FORWARD,
    PARAMETER,
    BareMode,
    CallGraph,
    LayerCall,
    Program,
    ProgramOp,
    Ref,
    Rule,
    ValueInfo,
    is_view,
    local_shape,
    value_info,
    without_numbers,
)

QUEUED = ("linear", "addmm")
"""Calls whose weight gradients can be made later than those of what they read."""
APART = ("norm", "loss")
"""Kinds of rules whose parts of a batch exchange what they add up, if they are of one step."""
MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
FREE = ("empty", "empty_like", "empty_strided", "new_empty", "detach", "alias")
"""Ops that launch nothing, beside views."""
FUSED = ("bernoulli_", "div_")
"""Ops of a dropout on a CPU that are one kernel with its product on a GPU."""


@dataclass(frozen=True, eq=False)
class PaperShare:
    """A device's part of a call, on paper: see `tracing.rules.rule.Share`.

    What devices exchange takes nothing here; it is counted elsewhere.

    Attributes:
        counts: Number of parts of each label that is divided.
        fullest: How many times the mean's rows the fullest device of several with experts has.
    """

    counts: dict[str, int]
    fullest: float = 1.0

    def parts(self, label: str) -> int:
        """Return the number of parts of a label."""
        return self.counts.get(label, 1)

    def index(self, label: str) -> int:
        """Return the number of this device's part: the first."""
        return 0

    def total(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the tensor in place of its sum over parts."""
        return tensor

    def largest(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Return the tensor in place of the largest of all parts."""
        return tensor

    def sent(
        self,
        rows: torch.Tensor,
        counts: Sequence[int],
        received: Sequence[int],
        label: str,
    ) -> torch.Tensor:
        """Return the rows in place of those that arrive, which are as many."""
        return rows


@dataclass(frozen=True, eq=False)
class Recorded:
    """The kernels of a part of a call, and the tensors that it keeps.

    Attributes:
        forward: Kernels of the forward pass.
        backward: Kernels of the gradients of what other calls made; of all if none can wait.
        whole: Kernels of all gradients.
        reads: Whether each tensor that it reads is kept for the backward pass.
        results: Whether each tensor that it makes is kept for the backward pass.
        inner: Bytes of other tensors that are kept.
        sizes: Bytes of every tensor at work. [tensors]
    """

    forward: Description
    backward: Description
    whole: Description
    reads: tuple[bool, ...]
    results: tuple[bool, ...]
    inner: float
    sizes: FloatArray

    @property
    def largest(self) -> float:
        """Return the bytes of the largest tensor."""
        return float(self.sizes.max(initial=0.0))


class _Ops(BareMode):
    """A dispatch mode that notes ATen's calls as ops of a program.

    Args:
        free: Names of ops that launch nothing and are not noted.
    """

    def __init__(self, free: Sequence[str]) -> None:
        super().__init__()
        self.free = free
        self.ops: list[ProgramOp] = []
        self.values: dict[str, ValueInfo] = {}
        self.names: dict[int, str] = {}
        self.alive: list[torch.Tensor] = []
        self.phase = FORWARD

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "prim" or func.overloadpacket.__name__ in self.free:
            return result
        positional, named = pytree.tree_map(self._ref, (tuple(args), dict(kwargs)))
        results = tuple(
            self._name(x) for x in pytree.tree_leaves(result) if torch.is_tensor(x)
        )
        name = f"op{len(self.ops)}"
        view = is_view(func) and not func._schema.is_mutable  # what changes it is none
        op = ProgramOp(
            name, func, positional, named, results, self.phase, None, (), view
        )
        self.ops.append(op)
        return result

    def _ref(self, leaf: object) -> object:
        if isinstance(leaf, torch.Tensor):
            return Ref(self._name(leaf))
        return leaf

    def _name(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self.names:
            self.names[id(tensor)] = f"v{len(self.names)}"
            self.alive.append(tensor)
            self.values[self.names[id(tensor)]] = value_info(tensor)
        return self.names[id(tensor)]

    def taken(self) -> Description:
        """Return the kernels of what was noted since the last time."""
        description = describe(Program("call", tuple(self.ops), {}, self.values, None))
        self.ops = []
        return description


def get_storage_key(tensor: torch.Tensor) -> int:
    """Return a key of the memory behind a tensor, which fake tensors have too."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(eq=False)
class _Saved:
    """The tensors that autograd keeps, by storage.

    Attributes:
        storages: Bytes of each storage.
    """

    storages: dict[Any, float] = field(default_factory=dict)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.storages[get_storage_key(tensor)] = float(
            tensor.untyped_storage().nbytes()
        )
        return tensor


@contextmanager
def run_in_precision(name: str) -> Iterator[None]:
    """Run the calls of a forward pass in a precision: a mixed one casts them automatically.

    Args:
        name: The precision, in Lightning's words.
    """
    if name not in MIXED:
        yield
        return
    with torch.autocast("cpu", MIXED[name]):
        yield


def record(
    graph: CallGraph,
    index: int,
    rule: Rule,
    split: Configuration,
    share: PaperShare,
    precision: str,
    mode: FakeTensorMode,
) -> Recorded:
    """Record the kernels of one shard of a call.

    Args:
        graph: The graph that has the call.
        index: Index of the call.
        rule: How it can be split.
        split: Label that each dimension of the mesh splits, or None.
        share: The shard, with the rows of the fullest part of experts.
        precision: Precision of parameters and passes, in Lightning's words.
        mode: The mode that makes fake tensors.
    """
    call = graph.calls[index]
    ops = _Ops((*FREE, *FUSED) if "dropout" in call.kind else FREE)
    saved = _Saved()
    with without_numbers(mode), torch.enable_grad():
        operands = [
            _operand(graph, value, axes, share)
            for value, axes in zip(call.reads, rule.reads, strict=True)
        ]
        # What a call changes in place must be no leaf; making the copy is no part of the call.
        operand_copies = [
            x.clone() if call.inplace or call.changes else x for x in operands
        ]
        keeping = torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda x: x)
        with ops, keeping, run_in_precision(precision):
            results = run_part(call, _alone(rule, call, split), share, operand_copies)
        forward = ops.taken()
        ops.phase = BACKWARD
        # Gradients: of activations alone where those of weights can wait, then of everything.
        learned = [r for r in results if r.grad_fn is not None]
        made = [
            x
            for x, v in zip(operands, call.reads, strict=True)
            if x.requires_grad and graph.values[v].source != PARAMETER
        ]
        every = [x for x in operands if x.requires_grad]
        if call.kind in QUEUED:
            backward = _gradients(ops, learned, made)
        else:
            backward = None
        gradients = _gradients(ops, learned, every)
    # Kept tensors are operands or results; the others are the call's own.
    outer = {get_storage_key(tensor) for tensor in (*operand_copies, *results)}
    inner = sum(size for key, size in saved.storages.items() if key not in outer)
    return Recorded(
        forward,
        gradients if backward is None else backward,
        gradients,
        tuple(get_storage_key(tensor) in saved.storages for tensor in operand_copies),
        tuple(get_storage_key(tensor) in saved.storages for tensor in results),
        inner,
        np.array([float(i.bytes) for i in ops.values.values()]),
    )


def _operand(
    graph: CallGraph, value: int, axes: Sequence[str | None], share: PaperShare
) -> torch.Tensor:
    info = graph.values[value]
    shape = local_shape(tuple(axes), info.shape, share)
    if value in graph.constants and not isinstance(graph.constants[value], FakeTensor):
        constant = graph.constants[value]
        if constant.numel() == math.prod(shape):
            return torch.empty_like(constant)
    operand = torch.empty(shape, dtype=info.dtype)
    if info.gradient and info.dtype.is_floating_point:
        return operand.requires_grad_()
    return operand


def _alone(rule: Rule, call: LayerCall, split: Configuration) -> Rule:
    """Return a rule as micro-batches and replicas follow it, which exchange nothing in a call.

    Statistics of a batch and means over it are of each part's own examples. Shards draw the whole
    mask of a dropout to have one device's numbers; on paper each draws its own.
    """
    is_whole = all(label is None for label in split[:-1])
    if "dropout" in call.kind or (is_whole and rule.kind in APART):
        return replace(rule, run=None)
    return rule


def _gradients(
    ops: _Ops, results: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> Description:
    if results and wanted:
        seeds = [torch.empty_like(x) for x in results]
        with ops:
            torch.autograd.grad(
                results, wanted, seeds, retain_graph=True, allow_unused=True
            )
    return ops.taken()
