"""Distils public measurements of GPU kernels into the tables of `gnnplace.costs`.

    python benchmarks/distill_costs.py SOURCES [-o gnnplace/costs/tables]

SOURCES has one folder a project, as its repository has the files (gzipped ones are read too):
`neusight`, `aiconfigurator`, `estimate-train-time`, `deepbench`, `vidur`. Each measured kernel
becomes a row (see `gnnplace.costs.rows`); of all rows in a cell of sizes, an octave or so wide, the
one with the median of seconds over the roofline is kept, unchanged but for the launch that its
source includes. A pair of gradients that was measured together is split over its two products in
proportion to what the forward rows say of their shapes.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnplace.costs.calibration import calibrate
from gnnplace.costs.rows import (
    FAMILY,
    Rows,
    from_records,
    read_rows,
    roofline,
    write_rows,
)
from gnnplace.costs.rows import Record as Row
from gnnplace.costs.tables import ERRORS, Surface
from gnnplace.files import write_json

FLOAT, HALF = 4, 2
# NeuSight's clock starts at an event on an idle GPU, so that the host's way to the launch is in
# every time: what the smallest kernels take but for these seconds of their own.
SMALLEST = 2e-6
CLEAR = 1.8  # times the floor: smaller ones say more of the host than of the kernel
PAIR = ".pair"  # the two gradients of a product, measured together
FLOOR_GPU = (
    "NVIDIA A100-PCIE-40GB"  # whose floors stand for GPUs that have large kernels alone
)
# The same way in its graphs of models, where a view takes 8 to 11 us forward, as does the backward
# of an addition; dispatch to a kernel takes about as much again.
GRAPH_FORWARD, GRAPH_BACKWARD, GRAPH_LEAST, PAIR_LEAST = 15e-6, 18e-6, 40e-6, 150e-6
NEUSIGHT = {
    "NVIDIA A100-PCIE-40GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100-80",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA L4": "l4",
    "Tesla P100-PCIE-16GB": "p100",
    "Tesla P4": "p4",
    "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100",
}
VECTOR = {  # NeuSight's name: op, tensors read and written
    "add": ("add", 3), "addu": ("add", 2), "mul": ("mul", 3), "mulu": ("mul", 2),
    "div": ("div", 3), "divu": ("div", 2), "pow": ("pow", 3), "powu": ("pow", 2),
    "relu": ("relu", 2), "gelu": ("gelu", 2), "tanh": ("tanh", 2),
    "ln": ("native_layer_norm", 2), "softmax": ("_softmax", 2),
}  # fmt: skip
AICONFIGURATOR = {
    "a100_sxm": "a100-80",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
TRAIN_TIME = {"Perlmutter": "a100-80", "Vista": "gh200"}
DEEPBENCH = {"V100": "v100", "T4": "t4", "P100": "p100", "TitanXp": "titan-xp"}
VIDUR = {"a100": "a100-80", "a40": "a40", "h100": "h100"}
WIDTH = {
    "matmul": 1.0,
    "bmm": 1.5,
    "convolution": 1.0,
    "attention": 1.0,
}  # octaves of a cell
HALF_WIDTH = 1.35  # of products in half precision, of which there are many more rows
LEAST_ROWS = 8  # tokens: smaller products are of decoding, not of training
Found = Iterator[tuple[str, Row]]


def main() -> None:
    """Reads, thins, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("gnnplace/costs/tables")
    )
    arguments = parser.parse_args()
    found: dict[str, list[Row]] = defaultdict(list)
    for name, read in READERS.items():
        for kind, row in read(arguments.sources / name):
            found[kind].append(row)
    total, made = 0, {}
    for kind, records in sorted(found.items()):
        rows = thinned(kind, from_records(apart(kind, records)))
        path = arguments.output / f"{kind}.csv.gz"
        write_rows(path, {kind: rows})
        total += path.stat().st_size
        made |= read_rows(path)
        print(f"{kind}: {len(records)} measured, {len(rows.seconds)} kept")
    write_json(arguments.output / ERRORS, calibrate(made))
    print(f"{total} bytes")


def table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, gzipped or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        return list(csv.DictReader(file))


def found_files(folder: Path, pattern: str) -> list[Path]:
    """Files of a pattern, gzipped or not."""
    return sorted({*folder.glob(pattern), *folder.glob(pattern + ".gz")})


def neusight(folder: Path) -> Found:
    """Single kernels in float32 without TF32, and the ops of its models' graphs."""
    floor: dict[tuple[str, str], float] = {}
    for path in found_files(folder, "data/dataset/train/collect/*/*/*.csv"):
        rows = table(path)
        least = float(np.percentile([float(row["Latency"]) for row in rows], 2)) * 1e-3
        floor[rows[0]["Device"], rows[0]["OPName"]] = least
        yield from _kernels(rows, floor)
    for path in found_files(folder, "data/dataset/test/*.csv"):
        yield from _kernels(table(path), floor)
    for path in found_files(folder, "label/*/*.csv"):
        kind = NEUSIGHT.get(path.parent.name.replace("_", " "))
        kind = kind or NEUSIGHT.get(path.parent.name)
        if kind is not None:
            yield from ((kind, row) for row in _graph(table(path)))


def _kernels(rows: list[dict[str, str]], floor: dict[tuple[str, str], float]) -> Found:
    """Rows well above the floor that the host sets: those at it say nothing of the kernel."""
    for row in rows:
        device, op = row["Device"], row["OPName"]
        least = floor.get((device, op)) or floor.get((FLOOR_GPU, op))
        if least is None:  # convolutions of a GPU of which nothing else is there
            least = 60e-6
        seconds = float(row["Latency"]) * 1e-3
        if seconds > CLEAR * least and device in NEUSIGHT:
            yield NEUSIGHT[device], _kernel(row, seconds - least + SMALLEST)


def _kernel(row: dict[str, str], seconds: float) -> Row:
    name = row["OPName"]
    if name in VECTOR:
        op, tensors = VECTOR[name]
        rows, length = int(row["B"]), int(row["H"])
        return Row(
            op,
            "float32",
            seconds,
            m=rows,
            n=length,
            bytes=FLOAT * tensors * rows * length,
        )
    if name == "conv":
        size, width = int(row["Input_Size"]), int(row["Kernel_Szie"])
        out = (size + 2 * int(row["Padding"]) - width) // int(row["Stride"]) + 1
        return convolution(
            "convolution", "float32", int(row["B"]), int(row["Input_Channel"]), size * size,
            int(row["Output_Channel"]), out * out, width * width, seconds,
        )  # fmt: skip
    batch, m, inner, n = (int(row[key]) for key in "BMNK")
    op = "matmul"
    if name == "bmm":
        op = "bmm"
    return product(op, "float32", batch, m, n, inner, seconds)


def product(
    op: str,
    dtype: str,
    batch: int,
    m: int,
    n: int,
    k: int,
    seconds: float,
    size: int = FLOAT,
) -> Row:
    """[batch, m, k] times [batch, k, n]."""
    moved = size * batch * (m * k + k * n + m * n)
    return Row(op, dtype, seconds, batch=batch, m=m, n=n, k=k, bytes=moved)


def convolution(
    op: str,
    dtype: str,
    batch: int,
    channels: int,
    pixels: int,
    filters: int,
    out: int,
    window: int,
    seconds: float,
    size: int = FLOAT,
) -> Row:
    """As the product that it is: output pixels x filters x (channels x window)."""
    moved = size * (
        batch * channels * pixels + channels * filters * window + batch * filters * out
    )
    return Row(
        op, dtype, seconds, m=batch * out, n=filters, k=channels * window, window=window,
        bytes=moved,
    )  # fmt: skip


def _graph(nodes: list[dict[str, str]]) -> Iterator[Row]:
    """Ops of one layer, forward and backward, each once."""
    seen = set()
    for node in nodes:
        made = re.findall(r"class '[\w.]*?(\w+)'", node["meta"])
        name = made[-1] if node["op"] == "call_module" and made else node["target"]
        shapes = [tuple(s) for s in ast.literal_eval(node["input_shapes"])]
        out = ast.literal_eval(node["output_shape"]) if node["output_shape"] else ()
        forward, backward = (
            float(node[key]) * 1e-3 for key in ("fw_latency", "bw_latency")
        )
        if not shapes or (name, str(shapes), out) in seen:
            continue
        seen.add((name, str(shapes), out))
        for row in _node(
            name, shapes, out, forward - GRAPH_FORWARD, backward - GRAPH_BACKWARD
        ):
            if row.seconds > (PAIR_LEAST if row.op.endswith(PAIR) else GRAPH_LEAST):
                yield row


def _node(
    name: str,
    shapes: list[tuple[int, ...]],
    out: tuple[int, ...],
    forward: float,
    backward: float,
) -> Iterator[Row]:
    size = int(np.prod(out)) if out and isinstance(out[0], int) else 0
    length = out[-1] if size else 1
    rows = size // max(length, 1)
    vector: dict[str, tuple[str, float, str, float]] = {
        "LayerNorm": ("", 0, "native_layer_norm_backward", 3),
        "GELUActivation": ("", 0, "gelu_backward", 3),
        "Dropout": ("native_dropout", 2.25, "native_dropout_backward", 2.25),
        "ReLU": ("", 0, "threshold_backward", 3),
    }
    if "softmax" in name:
        vector[name] = ("", 0, "_softmax_backward_data", 3)
    if "gelu" in name:
        vector[name] = ("", 0, "gelu_backward", 3)
    if name in vector:
        ahead, read, back, written = vector[name]
        if ahead:
            yield Row(
                ahead, "float32", forward, m=rows, n=length, bytes=int(4 * read * size)
            )
        yield Row(
            back, "float32", backward, m=rows, n=length, bytes=int(4 * written * size)
        )
    if name == "Embedding":
        yield Row("embedding", "float32", forward, m=rows, n=length, bytes=8 * size)
    if name == "Linear" or "addmm" in name:
        k = shapes[0][-1] if name == "Linear" else shapes[1][-1]
        yield product("matmul", "float32", 1, rows, length, k, forward)
        yield product("matmul.pair", "float32", 1, rows, length, k, backward)
    if "matmul" in name and len(shapes) == 2 and len(shapes[0]) == 4:
        (a, b, m, k), n = shapes[0], shapes[1][-1]
        yield product("bmm", "float32", a * b, m, n, k, forward)
        yield product("bmm.pair", "float32", a * b, m, n, k, backward)


def aiconfigurator(folder: Path) -> Found:
    """Products and fused attention in bfloat16, forward."""
    for name, kind in AICONFIGURATOR.items():
        for path in found_files(folder, f"{name}/gemm/*/*/gemm_perf.csv"):
            for row in table(path):
                m, n, k = (int(row[key]) for key in "mnk")
                if row["gemm_dtype"] == "bfloat16" and m >= LEAST_ROWS:
                    seconds = float(row["latency"]) * 1e-3
                    yield kind, product("matmul", "bfloat16", 1, m, n, k, seconds, HALF)
        for path in found_files(folder, f"{name}/*attention/*/*/*_attention_perf.csv"):
            causal = "context" in path.name
            for row in table(path):
                made = _attention(row, causal)
                if made is not None:
                    yield kind, made


def _attention(row: dict[str, str], causal: bool) -> Row | None:
    windows = row.get("window_size", "0") in ("", "0", "-1")
    heads = int(row["num_heads"])
    if (
        row["attn_dtype"] != "bfloat16"
        or row.get("kv_cache_dtype", "bfloat16") != "bfloat16"
        or not windows
    ):
        return None
    if int(row.get("num_key_value_heads") or 0) not in (0, heads) or int(
        row.get("step") or 0
    ):
        return None
    batch, length, width = (int(row[key]) for key in ("batch_size", "isl", "head_dim"))
    return attention(
        "attention", batch * heads, length, width, causal, float(row["latency"]) * 1e-3
    )


def attention(
    op: str,
    batch: int,
    length: int,
    width: int,
    causal: bool,
    seconds: float,
    tensors: int = 4,
) -> Row:
    """Fused, of as many queries as keys."""
    moved = HALF * tensors * batch * length * width
    return Row(
        op, "bfloat16", seconds, batch=batch, m=length, n=length, k=width, window=int(causal),
        bytes=moved,
    )  # fmt: skip


def train_time(folder: Path) -> Found:
    """Ops forward and backward in float16, kernel times alone."""
    for name, kind in TRAIN_TIME.items():
        for path in found_files(folder, f"{name}/operator/*_fp16.csv"):
            op = re.sub(r"^NVIDIA[\w-]*?GB_|_fp16\.csv(\.gz)?$", "", path.name)
            for row in table(path):
                yield from ((kind, made) for made in _trained(op, row, kind))


def _trained(op: str, row: dict[str, str], kind: str) -> Iterator[Row]:
    value = {key: float(text) for key, text in row.items() if text}
    if "F_dur(us)" not in value:
        return
    ahead, back = value["F_dur(us)"] * 1e-6, value["B_dur(us)"] * 1e-6
    ways, batch, length = (int(value.get(key, 1)) for key in ("mp", "b", "l"))
    width = int(value.get("dim", 1))
    tokens = batch * length
    sizes = {
        "linear1": (3 * width // ways, width),
        "linear2": (width, width // ways),
        "linear3": (4 * width // ways, width),
        "linear4": (width, 4 * width // ways),
        "linear_final": (-(-50257 // (128 * ways)) * 128, width),
    }
    if op in sizes:
        n, k = sizes[op]
        yield product("matmul", "bfloat16", 1, tokens, n, k, ahead, HALF)
        yield product("matmul.pair", "bfloat16", 1, tokens, n, k, back, HALF)
        return
    heads = int(value.get("h", 1))
    many, each = batch * heads // ways, width // heads
    if op == "flash_atten":
        yield attention("attention", many, length, each, True, ahead)
        if (
            kind != "gh200"
        ):  # whose column is of another kernel: 0.1 of forward, 45 us at least
            yield attention("attention_backward", many, length, each, True, back, 8)
        return
    if op in ("bmm", "baddbmm"):
        n, k = (length, each) if op == "baddbmm" else (each, length)
        yield product("bmm", "bfloat16", many, length, n, k, ahead, HALF)
        yield product("bmm.pair", "bfloat16", many, length, n, k, back, HALF)
        return
    rows, size, pairs = tokens, width, {
        "gelu": ("gelu", 2, "gelu_backward", 3),
        "layernorm": ("native_layer_norm", 2, "native_layer_norm_backward", 3),
        "res_add": ("add", 3, "", 0),
        "softmax": ("_softmax", 2, "_softmax_backward_data", 3),
        "embedding": ("embedding", 2, "", 0),
    }  # fmt: skip
    if op == "gelu":
        size = 4 * width // ways
    if op == "softmax":
        rows, size = many * length, length
    if op in pairs:
        name, tensors, gradient, moved = pairs[op]
        if op != "embedding" or ways == 1:
            yield Row(
                name,
                "bfloat16",
                ahead,
                m=rows,
                n=size,
                bytes=HALF * tensors * rows * size,
            )
        if gradient:
            yield Row(
                gradient,
                "bfloat16",
                back,
                m=rows,
                n=size,
                bytes=HALF * moved * rows * size,
            )


def deepbench(folder: Path) -> Found:
    """Convolutions forward and both gradients; products in float16."""
    for name, kind in DEEPBENCH.items():
        with open(folder / f"DeepBench_NV_{name}.csv") as file:
            rows = list(csv.reader(file))
        head: list[str] = []
        for row in rows:
            half = "FP16" in row[0]
            if ("M" in row and "N" in row) or "W" in row:
                head = [name.partition(" (Fil")[0].strip() for name in row]
            elif head and len(row) > 9 and row[3].replace(".", "").isdigit():
                value = dict(zip(head, row, strict=False))
                yield from ((kind, made) for made in _bench(value, half))


def _bench(value: dict[str, str], half: bool) -> Iterator[Row]:
    dtype, size = ("float16", HALF) if half else ("float32", FLOAT)
    if "A Transpose" in value:
        m, n, k = (int(float(value[key])) for key in "MNK")
        seconds = float(value["Time (msec)"]) * 1e-3
        yield product("matmul", dtype, 1, m, n, k, seconds, size)
        return
    if "C" not in value or not value.get("P", "").isdigit():
        return
    numbers = [int(float(value[name])) for name in "WHCNKSRPQ"]
    w, h, c, batch, filters, s, r, p, q = numbers
    times = {
        "convolution": value["Forward (msec)"],
        "convolution.input": value["wrt Inputs (msec)"],
        "convolution.weight": value["wrt Parameters (msec)"],
    }
    for op, text in times.items():
        if re.fullmatch(r"[\d.E+-]+", text):
            yield convolution(
                op,
                dtype,
                batch,
                c,
                w * h,
                filters,
                p * q,
                s * r,
                float(text) * 1e-3,
                size,
            )


def vidur(folder: Path) -> Found:
    """Layers' ops in float16, forward."""
    for name, kind in VIDUR.items():
        for path in found_files(folder / "compute" / name, "*/*/mlp.csv"):
            for row in table(path):
                yield from ((kind, made) for made in _layer(row))


def _layer(row: dict[str, str]) -> Iterator[Row]:
    value = {
        key: float(text) for key, text in row.items() if re.fullmatch(r"[\d.]+", text)
    }
    tokens, width = int(value["num_tokens"]), int(value["n_embd"])
    wide = int(value["n_expanded_embd"]) // int(value["num_tensor_parallel_workers"])
    gated = row["use_gated_mlp"] == "True"

    def seconds(name: str) -> float:
        return value.get(f"time_stats.{name}.median", 0.0) * 1e-3

    if tokens < LEAST_ROWS:
        return
    up, down = seconds("mlp_up_proj"), seconds("mlp_down_proj")
    made = [
        product("matmul", "bfloat16", 1, tokens, (1 + gated) * wide, width, up, HALF),
        product("matmul", "bfloat16", 1, tokens, width, wide, down, HALF),
        Row("add", "bfloat16", seconds("add"), m=tokens, n=width, bytes=6 * tokens * width),
    ]  # fmt: skip
    yield from (row for row in made if row.seconds > 4e-6)


READERS: dict[str, Callable[[Path], Found]] = {
    "neusight": neusight,
    "aiconfigurator": aiconfigurator,
    "estimate-train-time": train_time,
    "deepbench": deepbench,
    "vidur": vidur,
}


def apart(kind: str, records: list[Row]) -> list[Row]:
    """Pairs of gradients split over their two products; all else as it is."""
    result = [row for row in records if not row.op.endswith(PAIR)]
    for op in ("matmul", "bmm"):
        for dtype in ("float32", "bfloat16"):
            ahead = [row for row in result if row.op == op and row.dtype == dtype]
            pairs = [
                row for row in records if row.op == f"{op}.pair" and row.dtype == dtype
            ]
            if ahead and pairs:
                result += _split(kind, from_records(ahead), pairs)
    return result


def _split(kind: str, ahead: Rows, pairs: list[Row]) -> list[Row]:
    size = FLOAT if pairs[0].dtype == "float32" else HALF
    surface = Surface(ahead.at, np.log(ahead.seconds / roofline(kind, ahead)))
    first = [replace(p, op=f"{p.op[:-5]}.backward", n=p.k, k=p.n) for p in pairs]
    second = [replace(p, op=f"{p.op[:-5]}.backward", m=p.k, k=p.m) for p in pairs]
    assert size in (FLOAT, HALF)
    look = []
    for side in (first, second):
        rows = from_records(side)
        look.append(roofline(kind, rows) * np.exp(surface(rows.at)[0]))
    share = look[0] / (look[0] + look[1])
    split = [
        replace(row, seconds=row.seconds * s)
        for row, s in zip(first, share, strict=True)
    ]
    return split + [
        replace(row, seconds=row.seconds * (1 - s))
        for row, s in zip(second, share, strict=True)
    ]


def thinned(kind: str, rows: Rows) -> Rows:
    """The median row of each cell of sizes."""
    ratio = np.log(rows.seconds / roofline(kind, rows))
    keep: list[int] = []
    for op, dtype in sorted(set(zip(rows.op, rows.dtype, strict=True))):
        index = np.flatnonzero((rows.op == op) & (rows.dtype == dtype))
        family = FAMILY.get(op, "")
        width = WIDTH.get(family, 1.0)
        if family == "matmul" and dtype != "float32":
            width = HALF_WIDTH
        cells: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, cell in zip(
            index, np.floor(rows.at[index] / width).astype(int), strict=True
        ):
            cells[tuple(cell)].append(i)
        for members in cells.values():
            keep.append(sorted(members, key=lambda i: ratio[i])[len(members) // 2])
    return rows.take(np.array(sorted(keep)))


if __name__ == "__main__":
    main()
