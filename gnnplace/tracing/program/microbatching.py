"""The micro-batch transform of a program; that of problems is `gnnplace.problem.microbatching`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gnnplace.errors import InputError
from gnnplace.problem import check_microbatches
from gnnplace.tracing.program import operations
from gnnplace.tracing.program.program import (
    UPDATE,
    Program,
    ProgramInput,
    ProgramOp,
    Ref,
    ValueInfo,
    alias_roots,
    iter_refs,
    map_refs,
)


def with_program_microbatches(program: Program, count: int) -> Program:
    """Put `count` copies of forward and backward in flight, with one update at the end.

    Copy k of op `x` is `x#k`, of value `v` `v#k`, of user input `input.0` `input.0#k`. Parameters,
    optimizer state, buffers and constants stay single. An update reads the gradients of all
    copies and averages them, as `count` steps of gradient accumulation with the loss divided by
    `count` do. Buffers change in the order of the copies: an op that touches one comes `after` the
    previous copies of those that change it. Seeded random ops draw numbers of their
    own in every copy. All ops of copy 0 come first, then those of copy 1, updates last.

    Args:
        program: Captured at 1/count of the batch.
        count: Micro-batches M; 1 returns the program itself.

    Returns:
        The program. `initial` has for every copy its share of the batch that was captured, or of
        a program that knows no batch its example inputs; see `with_inputs` for others.

    Raises:
        InputError: a count below 1, or a program that is cut already.
    """
    check_microbatches(count)
    if program.microbatches != 1:
        raise InputError(
            f"{program.name}: already cut into {program.microbatches} micro-batches"
        )
    if count == 1:
        return program
    copies = _MicrobatchTransform(program, count).program()
    batch = program.batch
    if batch is None or not program.initial or len(batch.shares) != count:
        return copies
    return with_inputs(copies, batch.shares)


def with_inputs(
    program: Program, inputs: tuple[tuple[torch.Tensor, ...], ...]
) -> Program:
    """Return the program with other example inputs.

    Args:
        program: Cut into M micro-batches, or not (M = 1).
        inputs: For each micro-batch, the tensors in the order of the captured inputs.

    Raises:
        InputError: too few or too many, or of another shape or type.
    """
    names = [name for name, entry in program.inputs.items() if entry.kind == "input"]
    flat = [tensor for copy in inputs for tensor in copy]
    if len(inputs) != program.microbatches or len(flat) != len(names):
        raise InputError(
            f"{program.name}: {len(flat)} input tensors for {program.microbatches} micro-batches; "
            f"it takes {len(names)}"
        )
    for name, tensor in zip(names, flat, strict=True):
        info = program.values[name]
        if tuple(tensor.shape) != info.shape or tensor.dtype != info.dtype:
            raise InputError(
                f"{program.name}: input {name!r} has shape {tuple(tensor.shape)} and type "
                f"{tensor.dtype}; {info.shape} and {info.dtype} were captured"
            )
    initial = {**program.initial, **dict(zip(names, flat, strict=True))}
    if program.batch is not None:
        # Every share reads the same numbers of the whole batch.
        batch_values = program.batch.values(program.batch.joined(inputs))
        initial.update(
            {n: v.clone() for n, v in batch_values.items() if n in program.inputs}
        )
    return replace(program, initial=initial)


def list_buffer_turns(program: Program) -> list[tuple[int, int]]:
    """Return pairs of ops (a, b), by index: `b` reads or changes a buffer that `a` changes."""
    writers: dict[str, list[int]] = {}
    for i, op in enumerate(program.ops):
        if op.target is operations.copy_buffer:
            writers.setdefault(op.reads[0], []).append(i)
    roots = alias_roots(program.ops)
    pairs = {
        (writer, i)
        for i, op in enumerate(program.ops)
        for read in op.reads
        for root in roots.get(read, (read,))
        for writer in writers.get(root, ())
    }
    return sorted(pairs)


class _MicrobatchTransform:
    """A program and the names of its parts in every micro-batch."""

    def __init__(self, program: Program, count: int) -> None:
        self.source = program
        self.count = count
        self.single = {n for n, i in program.inputs.items() if i.kind != "input"}
        updates = [op for op in program.ops if op.phase == UPDATE]
        self.single |= {r for op in updates for r in op.results if r is not None}
        self.updates = {op.name for op in updates}
        self.turns: dict[str, list[str]] = {}
        for writer, toucher in list_buffer_turns(program):
            names = program.ops[writer].name, program.ops[toucher].name
            self.turns.setdefault(names[1], []).append(names[0])

    def program(self) -> Program:
        """Return the program with all copies."""
        source = self.source
        return replace(
            source,
            ops=tuple(self.ops()),
            inputs=self.per_copy(source.inputs, self.input),
            values=self.per_copy(source.values, _same),
            loss=None if source.loss is None else self.value(source.loss, 0),
            gradients={k: self.value(v, 0) for k, v in source.gradients.items()},
            buffers={
                k: self.value(v, self.count - 1) for k, v in source.buffers.items()
            },
            initial=self.per_copy(source.initial, _same),
            outputs=tuple(
                self.value(v, k) for k in range(self.count) for v in source.outputs
            ),
            microbatches=self.count,
        )

    def ops(self) -> list[ProgramOp]:
        """Return the ops of every copy, then the updates."""
        repeated = [op for op in self.source.ops if op.name not in self.updates]
        copies = [self.copy(op, k) for k in range(self.count) for op in repeated]
        return copies + [
            self.update(op) for op in self.source.ops if op.name in self.updates
        ]

    def value(self, name: str, copy: int) -> str:
        """Return the name of a value in a copy."""
        if name in self.single:
            return name
        return f"{name}#{copy}"

    def per_copy(
        self, entries: dict[str, Any], change: Callable[[Any, int], Any]
    ) -> Any:
        """Return entries by value name: single ones, then those of every copy by `change`."""
        result = {name: entry for name, entry in entries.items() if name in self.single}
        for k in range(self.count):
            for name, entry in entries.items():
                if name not in self.single:
                    result[f"{name}#{k}"] = change(entry, k)
        return result

    def input(self, entry: ProgramInput, copy: int) -> ProgramInput:
        """Return the user input of a copy."""
        return replace(entry, source=f"{entry.source}#{copy}")

    def copy(self, op: ProgramOp, index: int) -> ProgramOp:
        """Return an op of forward or backward in the copy of an index."""

        def renamed(ref: Ref) -> Ref:
            return Ref(self.value(ref.name, index))

        args = map_refs(op.args, renamed)
        if op.target is operations.seeded:
            args = (f"{args[0]}#{index}", *args[1:])
        return replace(
            op,
            name=f"{op.name}#{index}",
            args=args,
            kwargs=map_refs(op.kwargs, renamed),
            results=tuple(
                None if r is None else self.value(r, index) for r in op.results
            ),
            after=tuple(f"{name}#{index}" for name in op.after)
            + self.previous_turns(op, index),
        )

    def previous_turns(self, op: ProgramOp, index: int) -> tuple[str, ...]:
        """Return the ops of the previous copy that change a buffer which this one touches."""
        return tuple(
            f"{name}#{index - 1}" for name in self.turns.get(op.name, ()) if index > 0
        )

    def update(self, op: ProgramOp) -> ProgramOp:
        """Return the update with the gradients of all copies, after the ops of all copies."""
        predecessors: list[str] = []
        for name in op.after:
            if name in self.updates:
                predecessors.append(name)
            else:
                predecessors += [f"{name}#{k}" for k in range(self.count)]
        return replace(
            op, args=tuple(self.spread(a) for a in op.args), after=tuple(predecessors)
        )

    def spread(self, argument: object) -> object:
        """Return an argument of an update; a list of gradients has those of every copy."""
        if not isinstance(argument, list):
            return argument
        refs = [ref.name for ref in iter_refs(argument)]
        return [Ref(self.value(name, k)) for k in range(self.count) for name in refs]


def _same(entry: ValueInfo, copy: int) -> ValueInfo:
    """Return what is the same in every copy."""
    return entry
