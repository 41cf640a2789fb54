"""What several processes computed, compared with what one computes, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """The difference between one tensor and its reference.

    Attributes:
        name: What it is, such as "gradient of features.0.weight".
        absolute: Largest absolute difference; inf where one has NaN and the other has not.
        relative: The same difference over the reference's largest magnitude.
        tolerance: Largest relative difference allowed for its type.
    """

    name: str
    absolute: float
    relative: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Return whether it is within the tolerance."""
        return self.relative <= self.tolerance


@dataclass(frozen=True)
class Verification:
    """A run compared with one process.

    Attributes:
        tensors: Number of tensors compared.
        different: The values that are not equal, the worst first.
    """

    tensors: int
    different: tuple[Difference, ...]

    @property
    def bitwise(self) -> bool:
        """Return whether every tensor is equal bit for bit."""
        return not self.different

    @property
    def passed(self) -> bool:
        """Return whether every tensor is within its tolerance."""
        return all(difference.passed for difference in self.different)

    def summary(self) -> str:
        """Return one line for people."""
        if self.bitwise:
            return f"{self.tensors} tensors bitwise equal to one process"
        worst = self.different[0]
        if self.passed:
            verdict = "within"
        else:
            verdict = "NOT within"
        return (
            f"{len(self.different)} of {self.tensors} tensors differ, {verdict} tolerance; "
            f"the worst is {worst.name}: {worst.relative:.2g} relative "
            f"({worst.absolute:.2g} absolute), allowed {worst.tolerance:.2g}"
        )


def differences(
    computed: Tensors,
    expected: Tensors,
    tolerance: float | Mapping[torch.dtype, float],
    *,
    nothing: float | None = None,
) -> list[Difference]:
    """Return the tensors of both sides that are not equal, the worst first.

    Args:
        computed: What was computed, by name.
        expected: What one process computes.
        tolerance: Largest relative difference allowed; or by type, where types must be equal too.
        nothing: None compares bit by bit. Else numbers are compared, NaN is equal to nothing, and
            a tensor (but the loss) is measured against no less than this share of the largest
            magnitude of all: some gradients are zero but for rounding.
    """
    bits = nothing is None
    if nothing is None:
        floor = 0.0
    else:
        floor = nothing * _largest(expected)
    different = []
    for name, tensor in expected.items():
        actual = computed.get(name)
        if actual is None or _equal(actual, tensor, bits=bits):
            continue
        if isinstance(tolerance, float):
            allowed = tolerance
        else:
            allowed = tolerance.get(tensor.dtype, 0.0)
        absolute = _find_largest_difference(actual, tensor, bits=bits)
        if bits and absolute == float("inf"):
            allowed = 0.0
        scale = max(float(tensor.double().nan_to_num(0.0).abs().max()), floor)
        different.append(Difference(name, absolute, absolute / (scale or 1.0), allowed))
    return sorted(different, key=lambda d: -d.relative)


def _largest(expected: Tensors) -> float:
    """Return the largest magnitude of all tensors but the loss."""
    sizes = [
        float(t.abs().max())
        for name, t in expected.items()
        if name != "loss" and t.numel()
    ]
    return max(sizes, default=0.0)


def _equal(first: torch.Tensor, second: torch.Tensor, *, bits: bool) -> bool:
    if first.shape != second.shape:
        return False
    if not bits:
        return torch.equal(first.double(), second.double())
    if first.dtype != second.dtype:
        return False
    first_bytes, second_bytes = (
        tensor.reshape(-1).view(torch.uint8) for tensor in (first, second)
    )
    return torch.equal(first_bytes, second_bytes)


def _find_largest_difference(
    first: torch.Tensor, second: torch.Tensor, *, bits: bool
) -> float:
    """Return the largest absolute difference; inf if tensors are no numbers to compare."""
    if first.shape != second.shape or (bits and first.dtype != second.dtype):
        return float("inf")
    a = first.double()
    b = second.double()
    if bits:
        alike = torch.equal(a.isnan(), b.isnan())
        if alike:
            return float((a - b).nan_to_num(0.0).abs().max())
        return float("inf")
    absolute = float((a - b).abs().max())
    if absolute != absolute:
        return float("inf")
    return absolute
