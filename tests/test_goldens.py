"""Commands answer as in ``goldens.json``; ``python -m tests.test_goldens`` writes it anew.

Budgets are 0, seeds fixed, and seconds of the machine are left out, so that what differs is a
changed answer: a change that means to change one writes the file anew and says why.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnplace.cli.console import show_progress
from gnnplace.cli.main import run
from gnnplace.problem import write_problem
from tests.random_problems import random_problem

FILE = Path(__file__).with_name("goldens.json")
PLACED = ("place", "problem.json", "--budget", "0", "-o", "placement.json", "--placer")
CAPTURED = (
    "hf:llama?num_hidden_layers=4&hidden_size=64&intermediate_size=128&num_attention_heads=4"
    "&num_key_value_heads=4&vocab_size=512"
)
SIZES = "hf:llama-7b?length=64"
SPLIT = "mlp?depth=1&width=64&batch=8"
PLANNED = ("plan", CAPTURED, "--cluster", "nvlink-a100-8", "--batch", "16", "--json")
PRICED = ("plan", SIZES, "--cluster", "dgx-h100-8x8", "--batch", "512", "--json")
WORDS = "dp=2,tp=2,pp=2,microbatch_size=2,zero=1,recompute=block:1,layers=2+2"
LARGE_WORDS = (
    "dp=8,tp=4,pp=2,microbatch_size=2,zero=1,recompute=full,schedule=interleaved:2"
)
TABLE = """\
dp,tp,pp,microbatch_size,zero,recompute,x-name
8,4,2,2,1,full,first
64,1,1,1,3,none,second
2,4,8,1,1,selective,third
,,,,,,fourth
"""
MEGATRON = """\
torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu --normalization RMSNorm \\
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \\
  --untie-embeddings-and-output-weights --disable-bias-linear \\
  --position-embedding-type rope --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --bf16 \\
  --micro-batch-size 2 --global-batch-size 512 --recompute-granularity full \\
  --recompute-method uniform --recompute-num-layers 1
"""
COMMANDS = {
    "etf": (*PLACED, "etf"),
    "heft-contention": (*PLACED, "heft-contention"),
    "min-cut": (*PLACED, "min-cut"),
    "simulate": ("simulate", "problem.json", "placement.json", "--json"),
    "explain": ("explain", "problem.json", "placement.json", "--json"),
    "shard": ("shard", SPLIT, "--devices", "8", "--json"),
    "shard frontier": ("shard", SPLIT, "--devices", "4", "--pareto", "--json"),
    "plan groups": (
        "plan",
        "mlp?batch=8",
        "--cluster",
        "2xpcie-a100-4",
        "--goal",
        "epochs",
        "--json",
    ),
    "plan words": (*PLANNED, "--given", WORDS, "-o", "plan.json"),
    "plan its file": (*PLANNED, "--given", "plan.json"),
    "plan context": (*PLANNED, "--given", "dp=2,cp=4,microbatch_size=2,zero=3,sp=off"),
    "plan shards": (
        *PLANNED,
        "--given",
        "dp=2,shards=4,microbatch_size=4,schedule=1f1b",
    ),
    "plan captured table": (*PLANNED, "--given", "small.csv"),
    "plan framework words": (
        *PRICED,
        "--framework",
        "megatron-lm",
        "--given",
        LARGE_WORDS,
    ),
    "plan framework table": (
        *PRICED,
        "--framework",
        "nanotron",
        "--given",
        "table.csv",
    ),
    "plan launch file": (*PRICED, "--given", "train.sh"),
    "plan launcher": (*PRICED, "--launcher", "nanotron"),
    "convert to megatron-lm": (
        "convert",
        "plan.json",
        "--to",
        "megatron-lm",
        "-o",
        "written.sh",
    ),
    "convert to nanotron": (
        "convert",
        "plan.json",
        "--to",
        "nanotron",
        "-o",
        "written.yaml",
    ),
    "explain plan": ("explain", "plan.json", "--json"),
    "explain launch file": (
        "explain",
        "train.sh",
        "--cluster",
        "dgx-h100-8x8",
        "--json",
    ),
    "costs": (
        "costs",
        "show",
        "--cluster",
        "dgx-h100-8x8",
        "--framework",
        "nanotron",
        "--json",
    ),
    "unknown placer": (*PLACED, "magic"),
    "negative budget": (
        "place",
        "problem.json",
        "--budget",
        "-1",
        "-o",
        "placement.json",
    ),
    "broken file": ("simulate", "broken.json", "placement.json"),
    "unknown word": (*PLANNED, "--given", "dp=2,pipes=2"),
    "too many devices": (*PLANNED, "--given", "dp=8,tp=2"),
}
OF_THE_MACHINE = ("seconds", "machine", "op_placement")


def answers(folder: Path) -> dict[str, Any]:
    """What the commands print and write, one after the other in a folder."""
    write_problem(
        folder / "problem.json", random_problem(np.random.default_rng(5), 40, 3)
    )
    (folder / "broken.json").write_text(
        '{"format": "gnnplace-problem", "version": 1, "devise": []}'
    )
    (folder / "table.csv").write_text(TABLE)
    (folder / "small.csv").write_text(
        "dp,tp,zero,recompute\n2,4,1,\n8,1,3,full\n3,1,,\n"
    )
    (folder / "train.sh").write_text(MEGATRON)
    make_plan_answer = {}
    with contextlib.chdir(folder):
        for name, arguments in COMMANDS.items():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run([*arguments, "--quiet"])
            answer = make_plan_answer[name] = {"code": code, "error": err.getvalue()}
            if "--json" in arguments and out.getvalue():
                answer["answer"] = without_machine(json.loads(out.getvalue()))
            elif code == 0:
                text = Path(
                    arguments[-1] if arguments[0] == "convert" else "placement.json"
                ).read_text()
                written = (
                    {"text": text} if arguments[0] == "convert" else json.loads(text)
                )
                answer["answer"] = without_machine(written)
    return make_plan_answer


def without_machine(data: Any) -> Any:
    """Return an answer without seconds that were measured here; a list as a mapping of rows."""
    if isinstance(data, list):
        return {str(number): without_machine(row) for number, row in enumerate(data)}
    if isinstance(data, dict):
        return {key: value for key, value in data.items() if key not in OF_THE_MACHINE}
    return data


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    try:
        return answers(tmp_path_factory.mktemp("goldens"))
    finally:
        show_progress(True)  # --quiet would hide what tests after these read


def is_same(value: Any, golden: Any) -> bool:
    """Return whether two answers are equal, numbers to twelve digits."""
    if isinstance(golden, dict):
        return (
            isinstance(value, dict)
            and value.keys() == golden.keys()
            and all(is_same(value[key], golden[key]) for key in golden)
        )
    if isinstance(golden, list):
        return (
            isinstance(value, list)
            and len(value) == len(golden)
            and all(map(is_same, value, golden))
        )
    return bool(
        value == (pytest.approx(golden, rel=1e-12) if type(golden) is float else golden)
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_is_what_it_was(name: str, now: dict[str, Any]) -> None:
    golden = json.loads(FILE.read_text())[name]
    assert {**now[name], "answer": None} == {**golden, "answer": None}
    expected, answer = golden.get("answer", {}), now[name].get("answer", {})
    assert answer.keys() == expected.keys()
    for key, value in expected.items():
        assert is_same(answer[key], value), key


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        FILE.write_text(json.dumps(answers(Path(name)), separators=(",", ":")) + "\n")
