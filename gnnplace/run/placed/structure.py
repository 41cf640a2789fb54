"""The problem of a placement file, by its structure alone and without measurements.

Capturing the same model again gives the same groups, whatever their costs, so that the file alone
is enough to run a placement. The fingerprint in the file says whether the problem is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gnnplace.costs import detect, profile
from gnnplace.errors import MismatchError
from gnnplace.files import read_json
from gnnplace.problem import (
    OPTIONS_KEY,
    Cluster,
    Constraints,
    Device,
    Given,
    Placement,
    Problem,
    as_constraints,
    count_placed_microbatches,
    link_all_pairs,
    placement_from_data,
)
from gnnplace.tracing import UPDATE, Optimizer, Program, ProgramInput, Ref, ValueInfo
from gnnplace.tracing import make_optimizer as find_optimizer

SCALAR = ValueInfo((), (), torch.float32, 4)
PLENTY = 1e15
"""Bytes, and bytes a second, of devices and links whose measures do not matter."""


@dataclass(frozen=True, eq=False)
class UnboundPlacement:
    """A placement, from a file or from memory, before its problem is known.

    Attributes:
        source: The placement, or the data of its file.
        devices: Names of the cluster's devices.
        microbatches: Shares of the batch.
        groups: Ops of the problem that were aimed at; None: all of them.
        dtype: Element type that the model was captured in.
        name: What errors call the placement.
        optimizer: The optimizer that the model was captured with. Its costs affect the groups.
            None: the same as it will be trained with.
        accept_other_loss: The batch is cut also where the loss of its shares is another one.
        constraints: Constraints of modules, whose borders the groups keep.
    """

    source: Placement | dict[str, Any]
    devices: tuple[str, ...]
    microbatches: int
    groups: int | None
    dtype: str
    name: str
    optimizer: str | None = None
    accept_other_loss: bool = False
    constraints: Constraints = field(default_factory=Constraints)

    def bind(
        self, program: Program, problem: Problem | None, *, anywhere: bool = False
    ) -> tuple[Problem, Placement]:
        """Return the problem, and the placement of it.

        Args:
            program: Captured at 1/M of the batch, not cut yet.
            problem: If it is known already.
            anywhere: Its devices need not be of this machine.

        Raises:
            MismatchError: the placement is of another model, or was captured otherwise.
        """
        problem = problem or self._structure(program, anywhere)
        if isinstance(self.source, dict):
            return problem, placement_from_data(self.source, problem, self.name)
        if len(self.source.device) != problem.num_ops:
            raise MismatchError(
                f"placement: of {len(self.source.device)} ops, the model's problem has "
                f"{problem.num_ops}; give the problem that it was made for (problem=...)"
            )
        return problem, self.source

    def _structure(self, program: Program, anywhere: bool) -> Problem:
        if self.optimizer is not None:
            program = with_optimizer(program, find_optimizer(self.optimizer))
        bare = replace(program, initial={})
        if anywhere:
            cluster = _make_stand_in(self.devices)
        else:
            cluster = _cluster(self.devices)
        return profile(
            bare,
            cluster,
            groups=self.groups,
            microbatches=self.microbatches,
            constraints=self.constraints.borders,
        )


def read_unbound_placement(
    placement: Placement | str | Path,
    problem: Problem | None,
    *,
    microbatches: int = 1,
    groups: int | None = None,
    dtype: str = "float32",
    constraints: Given | None = None,
) -> UnboundPlacement:
    """Read a placement and how its model was captured.

    Args:
        placement: The placement, or the path of its file, which has all the arguments below.
        problem: The problem that the placement was made for, if it is at hand.
        microbatches: Shares of the batch, of a placement in memory without its problem.
        groups: Ops to aim at, of a placement in memory without its problem.
        dtype: Element type that the model of a placement in memory was captured in.
        constraints: The constraints that its model was grouped with.

    Raises:
        FormatError: no such file, or not a placement.
    """
    if isinstance(placement, Placement):
        count = problem.microbatches if problem else microbatches
        names = _device_names(placement, problem)
        return UnboundPlacement(
            source=placement,
            devices=names,
            microbatches=count,
            groups=groups,
            dtype=dtype,
            name="placement",
            constraints=as_constraints(constraints),
        )
    data = read_json(placement)
    stored = data.get(OPTIONS_KEY) if isinstance(data, dict) else None
    options = stored if isinstance(stored, dict) else {}
    count = max(
        int(options.get("microbatches", microbatches)), count_placed_microbatches(data)
    )
    return UnboundPlacement(
        source=data if isinstance(data, dict) else {},
        devices=_list_file_devices(data),
        microbatches=count,
        groups=_groups(options, groups),
        dtype=str(options.get("dtype", dtype)),
        name=str(placement),
        optimizer=str(options["optimizer"]) if "optimizer" in options else None,
        accept_other_loss=bool(options.get("accept_other_loss", False)),
        constraints=as_constraints(options.get("constraints", constraints)),
    )


def _groups(options: dict[str, Any], default: int | None) -> int | None:
    """Return the number of groups that a placement file has, else the default."""
    groups = options.get("groups", default)
    if groups is None:
        return None
    return int(groups)


def with_optimizer(program: Program, method: Optimizer) -> Program:
    """Return the structure of a program as if it had been captured with another optimizer.

    Args:
        program: A program with updates that is not cut into micro-batches.
        method: The optimizer that the program is to have instead.

    Returns:
        A program without tensors: ops of the same names, with other state and arguments.
    """
    inputs = {name: i for name, i in program.inputs.items() if i.kind != "optimizer"}
    ops = []
    for op in program.ops:
        if op.phase != UPDATE:
            ops.append(op)
            continue
        parameter, gradients = op.args[:2]
        about = inputs[parameter.name].info
        source = inputs[parameter.name].source
        states = [f"optimizer.{source}:{label}" for label in method.state]
        for name, label in zip(states, method.state, strict=True):
            info = SCALAR if label == "step" else about
            inputs[name] = ProgramInput(
                "optimizer", name.removeprefix("optimizer."), info
            )
        args = (parameter, gradients, *map(Ref, states), *method.constants)
        ops.append(replace(op, target=method.update, args=args))
    values = {n: v for n, v in program.values.items() if not n.startswith("optimizer.")}
    values |= {n: i.info for n, i in inputs.items() if i.kind == "optimizer"}
    return replace(program, ops=tuple(ops), inputs=inputs, values=values, initial={})


def _device_names(placement: Placement, problem: Problem | None) -> tuple[str, ...]:
    if problem is not None:
        return tuple(device.name for device in problem.cluster.devices)
    sequence = placement.sequence
    if sequence is not None:
        count = len(sequence)
    else:
        count = int(placement.device.max()) + 1
    return tuple(f"cpu:{d}" for d in range(count))


def _list_file_devices(data: object) -> tuple[str, ...]:
    """Return the device names of a placement file, in the order of its sequences if it has any."""
    if isinstance(data, dict):
        sequence = data.get("sequence")
    else:
        sequence = None
    if isinstance(data, dict):
        devices = data.get("device")
    else:
        devices = None
    if isinstance(sequence, dict):
        return tuple(str(name) for name in sequence)
    if isinstance(devices, dict):
        return tuple(sorted({str(v) for v in devices.values()}))
    return ()


def _cluster(names: Sequence[str]) -> Cluster:
    kinds = {name.partition(":")[0] for name in names}
    if kinds == {"cuda"}:
        return detect(f"cuda:{len(names)}")
    if kinds != {"cpu"}:
        raise MismatchError(
            f"placement: its devices are {', '.join(names) or 'none'}, not those of this machine "
            "(cpu:N or cuda:N)"
        )
    return _make_stand_in(names)


def _make_stand_in(names: Sequence[str]) -> Cluster:
    """Return a cluster of devices of these names, whatever they are."""
    devices = tuple(Device(name=name, kind="cpu", memory=PLENTY) for name in names)
    return Cluster(devices, link_all_pairs(names, latency=0.0, bandwidth=PLENTY))
