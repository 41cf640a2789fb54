"""Makes ``gnnplace/costs/tables/links.json`` from public measurements of links and collectives.

    python benchmarks/distill_links.py FOLDER [-o links.json]

FOLDER holds one folder a source, with the files of its repository gzipped as they are (parquet as
csv): ``aiconfigurator``, ``vidur``, ``estimate-train-time``, ``sailor``, ``vtrain``; repositories,
commits and licences are in ``gnnplace/costs/tables/LINKS.md``. What is left of a series:

* bytes as nccl-tests counts them: of the reduced buffer, of all that is gathered, of all that is
  scattered, of all that a device sends to the others (its own part included), of the message;
* the median of each half octave of bytes, where there are more sizes than that;
* no more seconds than any larger message took: what is above is a disturbance.

Left out as implausible: L40S with 4 and 8 GPUs (1 to 3 GB/s), all-gathers of Perlmutter and Vista
(rows of 0.1 ms whatever the bytes, or erratic by ten times), RTX 3090 with 8 GPUs (0.7 GB/s where
their pairs do 5), the H100 pairs' messages (a copy of the A100 pairs').
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

MICRO, MEBI = 1e-6, 2.0**20
Rows = Iterable[
    tuple[str, float, float]
]  # series such as "all_reduce 1x8", bytes, seconds
OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "send_recv": "p2p",
}


def read(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a gzipped CSV file with a heading."""
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def aiconfigurator(folder: Path, gpu: str, version: str, most: int = 8) -> Rows:
    """Half precision, ``message_size`` in elements, milliseconds."""
    path = folder / "aiconfigurator" / gpu / "comm/nccl" / version / "nccl_perf.csv.gz"
    for row in read(path):
        if row["nccl_dtype"] == "half" and int(row["num_gpus"]) <= most:
            series = f"{OPS[row['op_name']]} 1x{row['num_gpus']}"
            yield series, 2.0 * int(row["message_size"]), 1e-3 * float(row["latency"])


def vidur(folder: Path, machine: str, op: str, *, between: bool) -> Rows:
    """Bytes, milliseconds; inside a server, or between two and more."""
    for row in read(folder / "vidur/network" / machine / f"{op}.csv.gz"):
        devices, each = int(row["num_workers"]), int(row["devices_per_node"])
        if (devices > each) == between:
            seconds = 1e-3 * float(row[f"time_stats.{op}.median"])
            yield f"{OPS[op]} {devices // each}x{each}", float(row["size"]), seconds


def trained(folder: Path, cluster: str, op: str, *, between: bool) -> Rows:
    """estimate-train-time: elements of two bytes, microseconds."""
    names = {"all_reduce": ("allreduce", "allreduce_large"), "p2p": ("p2p",)}[op]
    for name in names:
        for path in sorted(
            (folder / "estimate-train-time" / cluster / "nccl").glob("*.csv.gz")
        ):
            if f"_{name}_fp16_" not in path.name:
                continue
            for row in read(path):
                servers, each = int(float(row["nodes"])), int(float(row["GPUsPerNode"]))
                if (servers > 1) == between:
                    size = 2.0 * float(row["shape"])
                    yield f"{op} {servers}x{each}", size, MICRO * float(row["dur(us)"])


def vtrain(folder: Path, gpu: str, groups: Iterable[int]) -> Rows:
    """nccl-tests' all-reduce in place: bytes, nanoseconds."""
    for group in groups:
        path = folder / "vtrain/trace" / gpu / f"AR_GPU{group}_1M_1024M_LUT.gz"
        with gzip.open(path, "rt") as file:
            for row in list(csv.reader(file))[1:]:
                yield f"all_reduce 1x{group}", float(row[0]), 1e-9 * float(row[5])


def sailor(
    folder: Path, gpu: str, keep: Callable[[str], bool] = lambda series: True
) -> Rows:
    """Aceso's profiles: MB of a device's own buffer, milliseconds; messages in GB/s by MB."""
    path = folder / "sailor/aceso_ops/collectives_p2p.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.reader(file) if row[0] == gpu and row[1] == "fp32"]
    sizes = [
        float(x) for x in next(r for r in rows if r[2] == "p2p_intra_node.csv")[3:]
    ]
    rates = [r for r in rows if r[2] == "p2p_intra_node.csv"][1][3:]
    for size, rate in zip(sizes, rates, strict=True):
        yield "p2p 1x2", size * MEBI, size * MEBI / (1e9 * float(rate))
    for _, _, name, size_text, seconds_text, *_ in (
        r for r in rows if r[2].startswith("prim_")
    ):
        if size_text.startswith("data") or float(seconds_text) > 1e6:
            continue
        op, group = "_".join(name.split("_")[2:-1]), int(name.split("_")[-1][0])
        series, copies = f"{OPS[op]} 1x{group}", group if op == "all_gather" else 1
        if keep(series):
            yield series, copies * float(size_text) * MEBI, 1e-3 * float(seconds_text)


def between_zones(folder: Path, gpu: str) -> Rows:
    """Sailor's fit of one stream between servers: GB/s, quadratic in log2 of megabytes."""
    with gzip.open(
        folder / "sailor/network/network_coeffs_all_homo.json.gz", "rt"
    ) as file:
        (a, b, c), _ = json.load(file)["inter"][gpu]["1"]
    for size in MEBI * 2.0 ** np.arange(11):
        x = np.log2(size / 1e6)
        yield "p2p 2x1", size, size / (1e9 * (a * x * x + b * x + c))


def fabrics(at: Path) -> dict[str, tuple[list[str], list[Rows]]]:
    """Sources and rows of every fabric; the first rows that have a series are its."""
    up_to_two = lambda series: series in ("all_reduce 1x2", "p2p 1x2")  # noqa: E731
    return {
        "nvswitch-a100": (
            ["aiconfigurator", "vidur", "vtrain"],
            [
                aiconfigurator(at, "a100_sxm", "2.27.3"),
                vidur(at, "a100_dgx", "send_recv", between=False),
                vtrain(at, "a100", (3, 5, 6, 7)),
            ],
        ),
        "nvswitch-h100": (
            ["aiconfigurator", "vidur"],
            [
                aiconfigurator(at, "h100_sxm", "2.29.2"),
                vidur(at, "h100_dgx", "send_recv", between=False),
            ],
        ),
        "nvswitch-h200": (
            ["aiconfigurator"],
            [aiconfigurator(at, "h200_sxm", "2.29.2")],
        ),
        "nvswitch-b200": (
            ["aiconfigurator"],
            [aiconfigurator(at, "b200_sxm", "2.29.2")],
        ),
        "nvlink-a100-4": (
            ["estimate-train-time"],
            [
                trained(at, "Perlmutter", "p2p", between=False),
                trained(at, "Perlmutter", "all_reduce", between=False),
            ],
        ),
        "nvlink-gh200-4": (["sailor"], [sailor(at, "GH-96")]),
        "nvlink-v100-4": (["sailor"], [sailor(at, "V100-16")]),
        "nvlink-v100-8": (["vtrain"], [vtrain(at, "v100", range(2, 9))]),
        "nvlink-pairs-a100": (
            ["vidur"],
            [
                vidur(at, "a100_pairwise_nvlink", "send_recv", between=False),
                vidur(at, "a100_pairwise_nvlink", "all_reduce", between=False),
            ],
        ),
        "nvlink-pairs-h100": (
            ["vidur"],
            [vidur(at, "h100_pairwise_nvlink", "all_reduce", between=False)],
        ),
        "nvlink-rtx-3090-2": (["sailor"], [sailor(at, "RTX-3090", up_to_two)]),
        "pcie-rtx-3090": (
            ["sailor"],
            [(r for r in sailor(at, "RTX-3090") if r[0] == "all_reduce 1x4")],
        ),
        "pcie-rtx-pro-6000": (
            ["aiconfigurator"],
            [aiconfigurator(at, "rtx_pro_6000_server", "2.29.2")],
        ),
        "pcie-l40s": (
            ["aiconfigurator"],
            [aiconfigurator(at, "l40s", "2.27.3", most=2)],
        ),
        "pcie-a40": (
            ["vidur"],
            [vidur(at, "a40_pairwise_nvlink", "send_recv", between=False)],
        ),
        "network-dgx-a100": (
            ["vidur"],
            [
                vidur(at, "a100_dgx", "send_recv", between=True),
                vidur(at, "a100_dgx", "all_reduce", between=True),
            ],
        ),
        "infiniband-dgx-h100": (
            ["vidur"],
            [vidur(at, "h100_dgx", "send_recv", between=True)],
        ),
        "infiniband-gh200": (
            ["estimate-train-time"],
            [
                trained(at, "Vista", "p2p", between=True),
                trained(at, "Vista", "all_reduce", between=True),
            ],
        ),
        "slingshot-gh200": (["sailor"], [between_zones(at, "GH-96")]),
        "slingshot-a100": (
            ["estimate-train-time"],
            [
                trained(at, "Perlmutter", "p2p", between=True),
                trained(at, "Perlmutter", "all_reduce", between=True),
            ],
        ),
        "ethernet-a100": (["sailor"], [between_zones(at, "A100-40")]),
        "ethernet-a100-80": (["sailor"], [between_zones(at, "A100-80")]),
        "ethernet-v100": (["sailor"], [between_zones(at, "V100-16")]),
    }


def distilled(points: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Bytes and microseconds of a series, as the heading says."""
    bins: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for size, seconds in points:
        bins[round(2 * np.log2(size))].append((size, seconds))
    cells = [
        (median(s for s, _ in c), median(t for _, t in c))
        for _, c in sorted(bins.items())
    ]
    seconds = np.minimum.accumulate(np.array([t for _, t in cells])[::-1])[::-1]
    return {
        "bytes": [round(size) for size, _ in cells],
        "us": [float(f"{t / MICRO:.4g}") for t in seconds],
    }


def collected(parts: Iterable[Rows]) -> dict[str, dict[str, list[float]]]:
    """The series of one fabric."""
    result: dict[str, dict[str, list[float]]] = {}
    for rows in parts:
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for name, size, seconds in rows:
            series[name].append((size, seconds))
        result = {name: distilled(points) for name, points in series.items()} | result
    return dict(sorted(result.items()))


def main() -> None:
    """Reads the folder, writes the table."""
    parser = argparse.ArgumentParser(
        description="Distils public measurements of collectives."
    )
    parser.add_argument("folder", type=Path, help="The folder of the public sources.")
    target = Path(__file__).parents[1] / "gnnplace/costs/tables/links.json"
    parser.add_argument(
        "-o", "--output", type=Path, default=target, help="The table to write."
    )
    args = parser.parse_args()
    table = {
        name: {"sources": sources, "series": collected(parts)}
        for name, (sources, parts) in fabrics(args.folder).items()
    }
    lines = (
        f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items()
    )
    args.output.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
