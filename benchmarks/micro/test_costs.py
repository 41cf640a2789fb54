"""Ops priced a second, one thread. Goal: 10,000 ops of a transformer in 50 ms."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.costs.prediction import predict
from gnnplace.costs.rows import Record, Rows, from_records, join_rows
from gnnplace.costs.tables import load_shipped_tables

WIDTH, TOKENS, LAYERS = 1024, 4096, 400


def transformer(layers: int = LAYERS) -> Rows:
    """Ops of alike layers, as models have them; 25 a layer."""
    m, n = TOKENS, WIDTH
    products = [
        Record(op, "float32", 1.0, m=a, n=b, k=c, bytes=4 * (a * c + b * c + a * b))
        for op, a, b, c in (
            ("matmul", m, 3 * n, n), ("matmul", m, n, n), ("matmul", m, 4 * n, n),
            ("matmul", m, n, 4 * n), ("matmul.backward", m, n, 3 * n),
            ("matmul.backward", 3 * n, n, m), ("matmul.backward", m, n, 4 * n),
            ("matmul.backward", 4 * n, n, m), ("matmul.backward", m, 4 * n, n),
        )
    ]  # fmt: skip
    vectors = [
        Record(op, "float32", 1.0, m=m, n=n, bytes=tensors * 4 * m * n)
        for op, tensors in (
            ("native_layer_norm", 2), ("native_layer_norm_backward", 3), ("add", 3), ("gelu", 2),
            ("gelu_backward", 3), ("clone", 2), ("native_dropout", 3), ("_softmax", 2), ("mul", 3),
            ("_softmax_backward_data", 3), ("sum", 1), ("where", 4), ("native_dropout_backward", 3),
            ("div", 2), ("sub", 3), ("adamw_update", 20),
        )
    ]  # fmt: skip
    return join_rows([from_records([*products, *vectors])] * layers)


@pytest.mark.parametrize("kind", ["a100-80", "h200", "rtx-3090"])
def test_prices(benchmark, kind):
    rows, tables = transformer(), load_shipped_tables()
    assert len(rows) == 10_000
    predict(rows, kind, tables)
    found = benchmark(predict, rows, kind, tables)
    if benchmark.stats:
        benchmark.extra_info["ops_a_second"] = len(rows) / benchmark.stats["median"]
    assert np.isfinite(found.seconds).all()
