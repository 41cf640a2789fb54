"""Comparison of numbers that may differ by rounding."""

from __future__ import annotations

from collections.abc import Iterable

import torch

TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}
"""Largest error allowed, relative to the tensor's largest magnitude: a few hundred roundings of the
type (its machine epsilon times about 1e3, less for the short types), as another order of sums
makes them. Equal kernels on equal layouts give equal bits, so errors beyond rounding are faults."""
NEGLIGIBLE = 0.05
"""Gradients are compared on a scale no smaller than this part of the largest one: that of an
attention's key bias is zero but for rounding, and so is its own scale."""
VANISHED = 1e-5
"""Gradients that are all smaller than this part of the loss are rounding errors and tell nothing;
those of an untrained network whose batch norm is frozen may be."""
SCALES = (1.0 / 1024, 1024.0**2)
"""Factors of a loss whose gradients are not those of its forward pass alone."""


def find_coarsest_tolerance(types: Iterable[torch.dtype]) -> float:
    """Return the tolerance of the shortest type that a step computes in, as within autocast.

    Args:
        types: The types of the values that the step makes; only floating point counts.
    """
    return max((TOLERANCE.get(dtype, 0.0) for dtype in types), default=0.0)


def find_largest(tensors: Iterable[torch.Tensor]) -> float:
    """Return the largest magnitude in some tensors; 0 of none."""
    return max(
        (float(t.nan_to_num(0.0).abs().max()) for t in tensors if t.numel()),
        default=0.0,
    )


def relative_error(
    found: torch.Tensor, expected: torch.Tensor, floor: float = 0.0
) -> float:
    """Return the largest difference over the largest expected magnitude, at least `floor`."""
    values = found.detach().double().cpu()
    expected_values = expected.detach().double().cpu()
    if values.shape != expected_values.shape or not torch.equal(
        values.isnan(), expected_values.isnan()
    ):
        return float("inf")
    scale = max(find_largest([expected_values]), floor)
    error = find_largest([values - expected_values])
    if scale:
        return error / scale
    return error
