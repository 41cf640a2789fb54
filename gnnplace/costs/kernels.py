"""Seconds of a decoder's kernels in a step: matrix products, fused attention, elementwise kernels.

Products, and each of their gradients by its own shape, come from the tables of measured kernels
(`gnnplace.costs.prediction`), times a factor for the sustained clock: a kernel alone runs at a
higher clock than the same kernel in a long step. Attention in one kernel (Dao, 2023, arXiv
2307.08691) computes half of the scores under a causal mask: 2 T S h operations forward and 2.5
times as many backward, at a rate R S / (S + S0) for length S. Kernels that are bound by memory take
their bytes divided by a share of the memory's bandwidth. Rates, factors and the share are in
`gnnplace.costs.frameworks`, with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from gnnplace.costs.frameworks.constants import (
    load_hardware_constants,
    load_library_constants,
)
from gnnplace.costs.prediction import predict
from gnnplace.costs.rows import Rows
from gnnplace.costs.tables import load_shipped_tables
from gnnplace.errors import InputError
from gnnplace.problem import find_kind, get_figures

HALF = "bfloat16"
GPUS = ("a100", "a100-80", "h100", "h200", "gh200", "b200")
ROOFLINE_ATTENTION, ROOFLINE_HALF = 0.4, 1150.0
"""Attention's rate as a share of the peak of products in half precision, and the length at which it
has half of that, on GPUs without rates of their own: between H100's 375 of 989 TFLOP/s and A100's
147 of 312."""
WIDE = 128  # width of a head at which attention's rates are told
PRODUCTS = "products"  # attention in products and one kernel of scale, mask and softmax
Shape = tuple[int, int, int]
"""Rows, columns and the summed length of a product."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """Times of kernels on a kind of GPU, in half precision.

    Attributes:
        kind: The kind of the GPU, by its own name.
        attention: The name of the library's rates, such as "flash".
        rates: By name: "products" (a factor), "stream" (of the bandwidth), "launch" (s), "rate",
            "half" and "head" of attention, "products_bytes".
    """

    kind: str
    attention: str
    rates: Mapping[str, float]

    @property
    def is_roofline(self) -> bool:
        """Return whether the GPU has no constants of a step: peaks and bandwidth price it."""
        return self.kind not in GPUS

    def products(self, shapes: Sequence[Shape], batch: float = 0.0) -> float:
        """Return the seconds of matrix products, one after the other.

        Args:
            shapes: Rows, columns and summed length of each.
            batch: How many of each run at once; 0: one product.
        """
        self.predict(shapes, batch)
        predicted = _predict_products(self.kind)
        return self.rates["products"] * sum(predicted[shape, batch] for shape in shapes)

    def predict(self, shapes: Sequence[Shape], batch: float = 0.0) -> None:
        """Predict the seconds of products that `products` is asked for next, all at once.

        One call for many shapes takes hardly longer than one call for a single shape.

        Args:
            shapes: The shapes of the products.
            batch: How many of each run at once; 0: one product.
        """
        predicted = _predict_products(self.kind)
        keys = ((shape, batch) for shape in shapes)
        missing = [key for key in dict.fromkeys(keys) if key not in predicted]
        if not missing:
            return
        m, n, k = np.array([shape for shape, _ in missing], dtype=np.float64).T
        count = len(missing)
        batches = np.full(count, max(batch, 1.0))
        no_window = np.zeros(count)
        rows = Rows(
            op=np.full(count, "bmm" if batch else "matmul"),
            dtype=np.full(count, HALF),
            sizes=np.stack([batches, m, n, k, no_window], axis=1),
            bytes=2.0 * batches * (m * k + k * n + m * n),  # of two bytes an element
            seconds=np.zeros(count),
        )
        seconds = predict(rows, self.kind, load_shipped_tables()).seconds
        predicted.update(zip(missing, seconds.tolist(), strict=True))

    def attend(self, tokens: float, length: int, width: float, head_size: int) -> float:
        """Return the seconds of causal attention forward; backward takes 2.5 times the operations.

        Args:
            tokens: Tokens of the micro-batch.
            length: Tokens of an example.
            width: The width of all heads of queries together.
            head_size: The width of one head.
        """
        if self.attention == PRODUCTS:
            scores = tokens * width / head_size * length
            rows = scores / length**2
            wide = self.products([(length, length, head_size)], rows)
            narrow = self.products([(length, head_size, length)], rows)
            return wide + narrow + self.stream(self.rates["products_bytes"] * scores)
        rate = self.rates["rate"] * min(1.0, head_size / WIDE) ** self.rates["head"]
        return 2.0 * tokens * width * (length + self.rates["half"]) / rate

    def stream(self, size: float) -> float:
        """Return the seconds in which so many bytes pass the memory, at the rate of a step."""
        return size / (get_figures(self.kind).bandwidth * self.rates["stream"])


@cache
def _predict_products(kind: str) -> dict[tuple[Shape, float], float]:
    """Return the predicted seconds of products of a kind of GPU, as far as they were asked for.

    By their shape and by how many run at once; frameworks have them in common.
    """
    return {}


def has_step_constants(kind: str) -> bool:
    """Return whether a decoder's step is priced on a kind of device: by constants, or by peaks."""
    name = find_kind(kind)
    return name in GPUS or (
        name not in (None, "cpu") and get_figures(kind).has_bfloat16
    )


def find_kernels(kind: str, attention: str, clock: float = 1.0) -> Kernels:
    """Return the rates of kernels on a kind of GPU.

    Args:
        kind: The kind of the GPU, by any of its names.
        attention: The name of the library's rates; "products" has none.
        clock: A factor of products that a framework's cluster owns, beside the hardware's.

    Raises:
        InputError: The GPU has no constants of a step.
    """
    kind = find_kind(kind) or kind
    if not has_step_constants(kind):
        raise InputError(
            f"device kind {kind!r}: no constants of a decoder's step are known; use one of "
            f"{', '.join(GPUS)} or a GPU with bfloat16, or give a plan in words without --framework"
        )
    constants = load_hardware_constants()
    library_rates = load_library_constants()
    rates = {name: constants[name] for name in ("stream", "launch")}
    # A GPU without fitted constants is priced by its peaks.
    if kind not in GPUS:
        by_peaks = {
            "products": clock,
            "products_bytes": library_rates["products_bytes"],
            "workspace": library_rates["workspace"],
            "rate": ROOFLINE_ATTENTION * get_figures(kind).flops(HALF),
            "half": ROOFLINE_HALF,
            "head": library_rates["flash_head"],
        }
        return Kernels(kind, attention, {**rates, **by_peaks})
    rates["products"] = constants.of("products", kind) * clock
    rates["products_bytes"] = library_rates["products_bytes"]
    rates["workspace"] = library_rates.of("workspace", kind)
    if attention != PRODUCTS:
        for name in ("rate", "half", "head"):
            rates[name] = library_rates.of(f"{attention}_{name}", kind)
    return Kernels(kind, attention, rates)
