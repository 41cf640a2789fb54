"""`verify`: is what the workers computed what one process computes?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gnnplace.errors import InputError
from gnnplace.execution.reference import reference_step
from gnnplace.execution.result import Execution, StepValues
from gnnplace.tracing.cut_numbers import TOLERANCE
from gnnplace.tracing.program import Program


@dataclass(frozen=True)
class Difference:
    """How far one tensor is off.

    Attributes:
        name: What it is, such as "gradient of features.0.weight".
        absolute: Largest absolute difference; inf where one has NaN and the other has not.
        relative: That, over the reference's largest magnitude.
        tolerance: Largest relative difference allowed for its type.
    """

    name: str
    absolute: float
    relative: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance."""
        return self.relative <= self.tolerance


@dataclass(frozen=True)
class Verification:
    """A run compared with one process.

    Attributes:
        tensors: Number of tensors compared.
        different: Those that are not bitwise equal, the worst first.
    """

    tensors: int
    different: tuple[Difference, ...]

    @property
    def bitwise(self) -> bool:
        """Whether every tensor is equal bit for bit."""
        return not self.different

    @property
    def passed(self) -> bool:
        """Whether every tensor is within its tolerance."""
        return all(difference.passed for difference in self.different)

    def summary(self) -> str:
        """One line for people."""
        if self.bitwise:
            return f"{self.tensors} tensors bitwise equal to one process"
        worst = self.different[0]
        verdict = "within" if self.passed else "NOT within"
        return (
            f"{len(self.different)} of {self.tensors} tensors differ, {verdict} tolerance; "
            f"the worst is {worst.name}: {worst.relative:.2g} relative "
            f"({worst.absolute:.2g} absolute), allowed {worst.tolerance:.2g}"
        )


def verify(program: Program, execution: Execution) -> Verification:
    """Compares a run's first step with the same program in one process, on one device.

    A run on GPUs is compared with one GPU, any other with the CPU.

    Args:
        program: The program that was executed.
        execution: The run itself, with outputs.

    Raises:
        InputError: the execution brought no numbers back.
        ExecutionError: the reference run failed.
    """
    if execution.first is None:
        raise InputError("execution: it has no outputs; run execute(..., outputs=True)")
    gpus = execution.mode == "measured" and all(d.startswith("cuda:") for d in execution.devices)
    device = execution.devices[0] if gpus else "cpu"
    return compare(execution.first, reference_step(program, device=device))


def compare(run: StepValues, reference: StepValues) -> Verification:
    """Compares all numbers of a step: loss, gradients, parameters, buffers, outputs."""
    expected = dict(_tensors(reference))
    found = dict(_tensors(run))
    if expected.keys() != found.keys():
        odd = sorted(expected.keys() ^ found.keys())
        raise InputError(f"execution: {odd[0]} is on one side only; was it another program?")
    differences = [
        _difference(name, found[name], tensor)
        for name, tensor in expected.items()
        if not _same_bits(found[name], tensor)
    ]
    differences.sort(key=lambda d: d.relative / d.tolerance if d.tolerance else d.relative)
    return Verification(len(expected), tuple(reversed(differences)))


def _tensors(values: StepValues) -> Iterator[tuple[str, torch.Tensor]]:
    if values.loss is not None:
        yield "loss", torch.tensor(values.loss)
    groups = {
        "gradient of": values.gradients,
        "parameter": values.parameters,
        "buffer": values.buffers,
        "optimizer state": values.optimizer,
        "output": values.outputs,
    }
    for what, tensors in groups.items():
        for name, tensor in tensors.items():
            yield f"{what} {name}", tensor


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return torch.equal(bits[0], bits[1])


def _difference(name: str, found: torch.Tensor, expected: torch.Tensor) -> Difference:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return Difference(name, float("inf"), float("inf"), 0.0)
    a, b = found.double(), expected.double()
    if not torch.equal(a.isnan(), b.isnan()):
        return Difference(name, float("inf"), float("inf"), 0.0)
    absolute = float((a - b).nan_to_num(0.0).abs().max())
    scale = float(b.nan_to_num(0.0).abs().max())
    relative = absolute / scale if scale else absolute
    return Difference(name, absolute, relative, TOLERANCE.get(expected.dtype, 0.0))
