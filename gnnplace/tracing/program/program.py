"""The captured program: one step of a model as a list of operations on named values.

A program is plain data. Every operation names the values that it reads (`Ref`) and the values
that it makes; nothing is hidden in closures, so that the program can be cut over devices, timed
op by op, written as a straight line (`CallWriter`) and replayed with the same numbers anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from gnnplace.errors import InputError
from gnnplace.torch_names import OpOverload
from gnnplace.tracing.program.cut_batch import CutBatch

FORWARD = "forward"
BACKWARD = "backward"
UPDATE = "update"
PLAIN = (int, str, bool, type(None))
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


@dataclass(frozen=True)
class Ref:
    """A reference to a value by name; it stands anywhere inside an op's arguments."""

    name: str


@dataclass(frozen=True)
class ValueInfo:
    """A tensor without its numbers.

    Attributes:
        shape: The size of each axis.
        stride: Strides in elements, as the op that makes the value leaves them.
        dtype: The type of its elements.
        bytes: Bytes of the elements that it has.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    bytes: int

    @property
    def occupied_bytes(self) -> int:
        """Return the bytes of memory; an expanded axis, whose stride is zero, counts once."""
        if 0 not in self.stride or not self.bytes:
            return self.bytes
        occupied = self.dtype.itemsize
        for size, stride in zip(self.shape, self.stride, strict=True):
            occupied *= size if stride else 1
        return occupied


@dataclass(frozen=True)
class ProgramOp:
    """One operation.

    Attributes:
        name: Unique in the program.
        target: An ATen overload, or a function of `operations`.
        args: Positional arguments; nested lists, tuples and dicts of constants and `Ref`s.
        kwargs: Keyword arguments, of the same kinds.
        results: Names of the values that it makes. Several: the target returns a tuple, and
            `None` is an element that nobody reads. Empty: the op only changes its arguments.
        phase: "forward", "backward" or "update".
        module: Qualified name of the module whose code it is, such as "features.0".
        after: Ops that come before it although no value flows (those that read what it changes).
        view: Its result shares memory with an input: it costs nothing and stays on that device.
        is_outside_modules: Whether it is the code of no module, such as the loss or a sum of
            gradients.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[str | None, ...]
    phase: str
    module: str | None
    after: tuple[str, ...] = ()
    view: bool = False
    is_outside_modules: bool = False

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the values that it reads, each once, in the order of arguments."""
        return tuple(
            dict.fromkeys(ref.name for ref in iter_refs((self.args, self.kwargs)))
        )


@dataclass(frozen=True)
class ProgramInput:
    """A value that exists before the first op.

    Attributes:
        kind: "parameter", "buffer", "optimizer" (its state), "input" (of the user), "constant", or
            "given" (a number of the whole batch that every micro-batch reads).
        source: Qualified name in the model; of an optimizer value "parameter:state", as in
            "fc.weight:momentum"; of a user input its position, "2" (in micro-batch 1: "2#1").
        info: Its shape, strides, type and bytes.
    """

    kind: str
    source: str
    info: ValueInfo

    def home(self, device: torch.device) -> torch.device:
        """Return where its tensor is kept for ops on `device`.

        A number of an optimizer's state, its count of steps, stays on the host, as in
        `torch.optim`: every update reads it, and would wait for a GPU to tell it.
        """
        on_host = self.kind == "optimizer" and not self.info.shape
        if on_host:
            return torch.device("cpu")
        return device


@dataclass(frozen=True)
class Program:
    """One step of a model: forward, and unless it is for inference backward and update.

    Attributes:
        name: The name of the model.
        ops: The ops in a topological order.
        inputs: By value name, in the order of capture.
        values: Every value, inputs included.
        loss: Value that was differentiated; `None` forward-only.
        outputs: Values that a forward-only program returns.
        gradients: Parameter's qualified name -> value name of its gradient.
        buffers: Buffer's qualified name -> value name of its new value.
        initial: Initial tensors of inputs by value name; empty of a fake capture.
        microbatches: Copies of forward and backward in flight; 1 as captured.
        batch: How the batch is cut of which a share was captured; None of a whole batch.
        notices: What the step does otherwise than the model, each in one line.
        modules: Class of each of the model's modules by its qualified name, all names of a shared
            one; "" is the model itself. Empty where nobody said.
        state: Its parameters and buffers by their qualified names, all names of tied ones; each
            with the first name of the same tensor.
    """

    name: str
    ops: tuple[ProgramOp, ...]
    inputs: dict[str, ProgramInput]
    values: dict[str, ValueInfo]
    loss: str | None
    gradients: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    initial: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    microbatches: int = 1
    batch: CutBatch | None = None
    notices: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def producer(self) -> dict[str, int]:
        """Return the index of the op that makes each value; inputs have none."""
        return {
            r: i for i, op in enumerate(self.ops) for r in op.results if r is not None
        }

    @cached_property
    def op_index(self) -> dict[str, int]:
        """Return the position of each op by name."""
        return {op.name: i for i, op in enumerate(self.ops)}

    @cached_property
    def losses(self) -> tuple[str, ...]:
        """Return the loss value of every micro-batch: one as captured, none forward-only."""
        if self.loss is None:
            return ()
        if self.microbatches == 1:
            return (self.loss,)
        return tuple(f"{base_name(self.loss)}#{k}" for k in range(self.microbatches))


def base_name(name: str) -> str:
    """Return the name of an op or value without its micro-batch: `mm_3#1` -> `mm_3`."""
    return name.rpartition("#")[0] or name


def iter_refs(value: object) -> Iterator[Ref]:
    """Yield every reference inside nested lists, tuples and dicts, in order."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Ref):
            yield item
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif isinstance(item, dict):
            waiting += reversed(item.values())


def map_refs(value: object, function: Callable[[Ref], object]) -> Any:
    """Return the same nested value with `function(ref)` in the place of every reference."""
    if isinstance(value, Ref):
        return function(value)
    if isinstance(value, list):
        return [map_refs(item, function) for item in value]
    if isinstance(value, tuple):
        return tuple(map_refs(item, function) for item in value)
    if isinstance(value, dict):
        return {key: map_refs(item, function) for key, item in value.items()}
    return value


def alias_roots(ops: Iterable[ProgramOp]) -> Mapping[str, frozenset[str]]:
    """Return, for each value that may share memory, the values at the root of its views."""
    roots: dict[str, frozenset[str]] = {}
    for op in ops:
        if op.view:
            shared = frozenset().union(
                *(roots.get(r, frozenset((r,))) for r in op.reads)
            )
            roots.update({r: shared for r in op.results if r is not None})
    return roots


def value_info(tensor: torch.Tensor) -> ValueInfo:
    """Return the shape, strides, type and bytes of a real or fake tensor."""
    return ValueInfo(
        shape=tuple(int(size) for size in tensor.shape),
        stride=tuple(int(stride) for stride in tensor.stride()),
        dtype=tensor.dtype,
        bytes=int(tensor.numel()) * tensor.element_size(),
    )


def clone_initial(program: Program) -> dict[str, torch.Tensor]:
    """Return copies of the initial tensors that may be changed, strided alike unless expanded.

    Raises:
        InputError: the program was captured without tensors.
    """
    if not program.initial and program.inputs:
        raise InputError(
            f"{program.name}: captured without tensors (fake); it cannot be run"
        )
    tensors = {
        n: t if all(t.stride()) else t.contiguous() for n, t in program.initial.items()
    }
    return {
        name: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype).copy_(t)
        for name, t in tensors.items()
    }


def on_device(value: object, device: torch.device) -> Any:
    """Return what stands on `device` for a constant of a program, or for the function of an op.

    Devices become this one. A view that strides at capture allow may need a copy where kernels lay
    their results out otherwise: `reshape` copies where it must.
    """
    if isinstance(value, torch.device):
        return device
    if isinstance(value, OpOverload) and value in VIEWS:
        return torch.ops.aten.reshape.default
    return value


class CallWriter:
    """A writer of ops as lines of Python source.

    Args:
        name_of: The local name of a value of the program.
        constant_of: What stands for a constant or a function, such as another device; itself by
            default.

    Attributes:
        constants: Global names of the source: functions and constants.
    """

    def __init__(
        self,
        name_of: Callable[[str], str],
        constant_of: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.name_of = name_of
        self.constant_of = constant_of
        self.constants: dict[str, Any] = {}

    def lines(self, op: ProgramOp) -> list[str]:
        """Return the op's call, and a line that lets go of results that nobody reads."""
        arguments = [self.text(value) for value in op.args]
        arguments += [f"{key}={self.text(value)}" for key, value in op.kwargs.items()]
        call = f"{self.constant(self.constant_of(op.target))}({', '.join(arguments)})"
        targets = [
            "_" if result is None else self.name_of(result) for result in op.results
        ]
        written = [f"{', '.join(targets)} = {call}" if targets else call]
        if "_" in targets:
            return [*written, "_ = None"]
        return written

    def text(self, value: Any) -> str:
        """Return an argument as source."""
        if isinstance(value, Ref):
            return self.name_of(value.name)
        if type(value) in PLAIN:
            return repr(value)
        if next(iter_refs(value), None) is None:
            # Plain lists, as ATen wants them.
            return self.constant(self.constant_of(map_refs(value, lambda ref: ref)))
        if isinstance(value, list):
            return "[" + ", ".join(self.text(item) for item in value) + "]"
        if isinstance(value, dict):
            items = (f"{key!r}: {self.text(item)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        return "(" + "".join(f"{self.text(item)}, " for item in value) + ")"

    def constant(self, value: object) -> str:
        """Return a global name for a value."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name
