"""`OPTIMIZERS`: bytes that optimizers keep and move for each parameter, with their sources.

A moment has the bytes that the precision gives it (`costs.memory.PARAMETER`); quantized moments
have their own. Bytes moved are those of one fused kernel in float32, which reads the gradient, and
reads and writes the parameter and the state: 28 bytes for AdamW. A framework's measured constant of
its update is for AdamW, so that other optimizers move `extra_bytes_moved` more or fewer.

Adafactor keeps a row and a column of every matrix, and whole vectors. Muon keeps a momentum of the
matrices of layers and makes their updates orthogonal (`list_newton_schulz_products`); tables, norms
and biases are AdamW's there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnplace.errors import InputError

QUANTIZED_BLOCK = 256
"""Numbers that share one float32 scale in bitsandbytes' 8-bit states (`optim/optimizer.py`,
`Optimizer2State.init_state`)."""
NEWTON_SCHULZ_STEPS = 5
"""Iterations of Muon (Jordan et al., 2024), the default of `torch.optim.Muon`, too."""
ADAMW_BYTES_MOVED = 28.0


@dataclass(frozen=True)
class OptimizerKind:
    """The state and the memory traffic of an optimizer for each parameter.

    Attributes:
        moments: Numbers that it keeps, in the precision's type of moments.
        quantized: Bytes that it keeps in a type of its own.
        bytes_moved: Bytes that its step reads and writes, all states in float32.
        source: The paper, and the implementation whose states are counted.
        is_factored: Whether a matrix has a row and a column of sums instead of a moment.
        is_orthogonal: Whether it steps the matrices of layers alone, and AdamW all else.
    """

    moments: float
    bytes_moved: float
    source: str
    quantized: float = 0.0
    is_factored: bool = False
    is_orthogonal: bool = False

    def kept_bytes(self, moment_bytes: float) -> float:
        """Return the bytes that it keeps for a parameter whose moments have so many bytes each."""
        return self.moments * moment_bytes + self.quantized

    @property
    def extra_bytes_moved(self) -> float:
        """Return the bytes that its step moves for a parameter more than AdamW's."""
        return self.bytes_moved - ADAMW_BYTES_MOVED

    @property
    def is_uniform(self) -> bool:
        """Return whether every parameter has the same bytes, whatever its shape and place."""
        return not (self.is_factored or self.is_orthogonal)


OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adamw": OptimizerKind(
        moments=2,
        bytes_moved=ADAMW_BYTES_MOVED,
        source="Loshchilov and Hutter, 2019, arXiv 1711.05101; torch.optim.AdamW: two moments",
    ),
    "adam": OptimizerKind(
        moments=2,
        bytes_moved=ADAMW_BYTES_MOVED,
        source="Kingma and Ba, 2015, arXiv 1412.6980; torch.optim.Adam: two moments",
    ),
    "adamw-8bit": OptimizerKind(
        moments=0,
        quantized=2 * (1 + 4 / QUANTIZED_BLOCK),
        bytes_moved=12 + 4 * (1 + 4 / QUANTIZED_BLOCK),
        source="Dettmers et al., 2022, arXiv 2110.02861; bitsandbytes.optim.AdamW8bit: two moments "
        "of a byte, a float32 scale for each block of 256; tensors below 4,096 numbers stay wide",
    ),
    "adafactor": OptimizerKind(
        moments=0,
        # The gradient three times, the update written and read twice, the parameter both ways.
        bytes_moved=32,
        source="Shazeer and Stern, 2018, arXiv 1804.04235; torch.optim.Adafactor: sums of rows and "
        "of columns, no momentum",
        is_factored=True,
    ),
    "muon": OptimizerKind(
        moments=1,
        # The momentum and the parameter both ways, the gradient, the half update written and read.
        bytes_moved=24,
        source="Jordan et al., 2024, kellerjordan.github.io/posts/muon; torch.optim.Muon: a "
        "momentum of the matrices of layers, AdamW for all else",
        is_orthogonal=True,
    ),
    "lion": OptimizerKind(
        moments=1,
        bytes_moved=20,
        source="Chen et al., 2023, arXiv 2302.06675: a momentum",
    ),
    "sgd-momentum": OptimizerKind(
        moments=1,
        bytes_moved=20,
        source="Sutskever et al., 2013; torch.optim.SGD with momentum: its buffer",
    ),
    "sgd": OptimizerKind(
        moments=0, bytes_moved=12, source="torch.optim.SGD without momentum: nothing"
    ),
}
"""Optimizers by their names in `--optimizer`."""
CAPTURED_OPTIMIZERS = ("sgd", "adam", "adamw")
"""Those whose update is captured and priced kernel by kernel, and run by plans."""


def get_optimizer_kind(name: str) -> OptimizerKind:
    """Return the kind of an optimizer: what it keeps and moves for each parameter.

    Raises:
        InputError: There is no such optimizer; the message lists the names.
    """
    if name not in OPTIMIZERS:
        raise InputError(
            f"optimizer {name!r}: unknown; use one of {', '.join(OPTIMIZERS)}"
        )
    return OPTIMIZERS[name]


def list_newton_schulz_products(rows: int, columns: int) -> list[tuple[int, int, int]]:
    """Return the products of Muon's step of a matrix: rows, columns, summed length of each.

    An iteration makes A = X X', B = b A + c A A and a X + B X, of X with no more rows than columns.
    """
    narrow, wide = sorted((rows, columns))
    products = [
        (narrow, narrow, wide),
        (narrow, narrow, narrow),
        (narrow, wide, narrow),
    ]
    return products * NEWTON_SCHULZ_STEPS
