"""A thousand mutated files down the command line, in one run of one process.

Every kind of file that a command reads: a valid one is changed by a seed in type, number, length,
name, order, nesting, encoding or bytes, or blown up to 10 MB. What is read all the same is used.
What is not is exit code 2 (3: nothing fits) and one line a fault, within a second of processor
time, two at 10 MB; nothing leaves a traceback.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import GnnplaceError
from gnnplace.explaining.measured_steps import read_measured_steps
from gnnplace.launch.registry import read_launch_file
from gnnplace.zoo.hf import hugging_face
from tests.campaign import formats as f
from tests.campaign import mutations as m
from tests.explaining.test_measured_steps import LOGS, SIZES, written
from tests.launch import (
    test_accelerate,
    test_deepspeed,
    test_megatron,
    test_megatron_bridge,
    test_nanotron,
    test_torchtitan,
)

SEED, ALL, SLICE = 37, 1000, 40
SECONDS, SECONDS_LARGE = 1.0, 2.0
LARGE = 10_000_000  # bytes; a parser of JSON or XML alone takes over a second for some
MODEL = "hf:gpt2?n_layer=2&n_embd=64&n_head=4&vocab_size=128&n_positions=32&length=32"
CLUSTER = "nvlink-a100-8"
TABLE = """batch,dp,tp,pp,microbatch_size,zero,recompute,layers,x-mine
16,2,2,2,2,1,none,1+1,a
32,4,2,1,4,0,full,,b
16,8,1,1,2,3,,,c
"""
CONSTRAINTS = "headroom: 1%\nmax_devices: 2\nby_module: false\npin: {}\ntogether: []\n"


@dataclass(frozen=True)
class Asked:
    """A kind of file: what writes a valid one, how it is changed, and what reads it."""

    name: str
    prepare: Callable[[Path], Path]
    change: Callable[[bytes, Random], bytes]
    read: Callable[[Path], tuple[int, str]]


def of_format(name: str) -> Asked:
    """One that a function reads."""
    form = next(form for form in f.FORMATS if form.name == name)
    return Asked(name, form.prepare, form.change, by_function(form.read))


def by_function(read: Callable[[Path], object]) -> Callable[[Path], tuple[int, str]]:
    def told(path: Path) -> tuple[int, str]:
        try:
            read(path)
        except GnnplaceError as error:
            return error.exit_code, str(error)
        return 0, ""

    return told


class Commands:
    """Runs commands; what they say on stderr is kept."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Callable[[Path], tuple[int, str]]:
        def told(path: Path) -> tuple[int, str]:
            given = [
                w.replace("FILE", str(path)).replace("HERE", str(path.parent))
                for w in words
            ]
            self.capture.readouterr()
            code = run([*given, "--quiet"])
            return code, self.capture.readouterr().err

        return told


command = Commands()


@cache
def plan_text() -> bytes:
    words = "dp=2,tp=2,pp=2,microbatch_size=2,zero=1,recompute=full"
    (plan,) = gnnplace.plan(MODEL, CLUSTER, batch=16, given=words)
    return json.dumps(plan.to_data()).encode()


def config(folder: Path) -> Path:
    sizes = {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 128,
        "n_positions": 32,
    }
    data = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(
        json.dumps(data | sizes | {"activation_function": "gelu"})
    )
    return folder / "config.json"


def launch(
    name: str, suffix: str, text: str, change: Callable[[bytes, Random], bytes]
) -> Asked:
    price = command("plan", "--cluster", CLUSTER, "--given", "FILE", "--json")

    def read(path: Path) -> tuple[int, str]:
        try:
            read_launch_file(path, name)
        except GnnplaceError as error:
            return error.exit_code, str(error)
        return (0, "") if name != "megatron-lm" else price(path)

    return Asked(name, f.text_file(f"launch{suffix}", text), change, read)


ASKED = [
    Asked("problem", f.small_problem, f.JSON,
          command("place", "FILE", "--placer", "etf", "--budget", "0", "-o", "HERE/p.json")),
    Asked("constraints", f.text_file("c.yaml", CONSTRAINTS), f.YAML,
          command("place", "HERE/problem.json", "--constraints", "FILE", "--placer", "etf",
                  "--budget", "0", "-o", "HERE/p.json")),
    Asked("placement", f.placement, f.JSON, command("simulate", "HERE/problem.json", "FILE")),
    Asked("cluster", f.cluster, f.YAML, command("costs", "show", "--cluster", "FILE")),
    Asked("sharding", lambda p: f.sharding(p, "a.json"), f.JSON, command("shard", "FILE")),
    Asked("sharding tables", lambda p: f.sharding(p, "a.npz"), f.arrays,
          command("shard", "HERE/a.json")),
    Asked("plan", f.binary_file("plan.json", plan_text), f.JSON,
          by_function(lambda path: gnnplace.read_plan(path))),
    Asked("plan on the command line", f.binary_file("plan.json", plan_text), f.JSON,
          command("explain", "FILE", "--measured", "90ms")),
    Asked("table of plans", f.text_file("plans.csv", TABLE), m.changed_text,
          command("plan", "hf:gpt2", "--cluster", CLUSTER, "--given", "FILE", "--json")),
    launch("megatron-lm", ".sh", test_megatron.SCRIPT, m.changed_text),
    launch("megatron-bridge", ".py", test_megatron_bridge.RECIPE, m.changed_text),
    launch("torchtitan", ".py", test_torchtitan.REGISTRY.split("\n\n\n")[1], m.changed_text),
    launch("nanotron", ".yaml", test_nanotron.TINY, f.YAML),
    launch("accelerate", ".yaml", test_accelerate.TP_HSDP, f.YAML),
    launch("deepspeed", ".json", test_deepspeed.ZERO_1, f.JSON),
    Asked("config.json", config, f.JSON, by_function(lambda path: hugging_face(str(path)))),
    *[Asked(f"log of {name}", f.text_file("run.log", written(name, [9.0, *[0.8] * 20])),
            m.changed_text, by_function(lambda path: read_measured_steps(str(path), SIZES)))
      for name in LOGS],
    *[of_format(name) for name in
      ("shard plan", "calibration", "suite", "rows", "best known", "pipedream", "training",
       "dnn-partitioning", "placeto", "networkx", "graphml", "onnx", "chakra", "chakra (JSON)",
       "checksums", "captured graph", "epochs (CSV)", "epochs (YAML)", "sweep space",
       "cache entry", "store")],
]  # fmt: skip


def blown_up(content: bytes, rng: Random) -> bytes:
    """Ten megabytes: of the file again and again, of one of its lines, of blanks or of a text."""
    line = rng.choice(content.splitlines()) + b"\n"
    piece = rng.choice([content, line, b" ", b"\n", b'"x', b"[1,", b"- a\n", b"a: {"])
    at = rng.randrange(len(content) + 1)
    return content[:at] + piece * (LARGE // len(piece)) + content[at:]


def told(said: str, path: Path) -> bool:
    """One line, or one for each of several faults of the file, each with its key path."""
    lines = said.splitlines()
    several = all(
        line.startswith((f"gnnplace: {path}: ", "gnnplace: and ")) for line in lines
    )
    return len(lines) == 1 or (1 < len(lines) <= 21 and several)


@pytest.mark.parametrize(
    "size", [pytest.param(SLICE, id="slice"),
             pytest.param(ALL, id="all", marks=pytest.mark.campaign)]
)  # fmt: skip
def test_mutated_files_are_one_line_within_a_second(
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    counted: Callable[[str, int], None],
) -> None:
    """All take 100 s; a slice ten: valid files of every kind are made and read first."""
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path / "cache"))
    command.capture = capsys
    made = {}
    for asked in ASKED[:: 1 if size == ALL else 4]:
        folder = tmp_path / asked.name.replace(" ", "_")
        folder.mkdir()
        f.small_problem(folder)
        f.placement(folder)
        path = asked.prepare(folder)
        code, said = asked.read(path)
        assert code == 0, (asked.name, said)
        made[asked] = path, path.read_bytes()
    faults, codes = [], {0: 0, 2: 0, 3: 0}
    for number in range(size):
        rng = Random(1000 * SEED + number)
        asked = list(made)[number % len(made)]
        path, valid = made[asked]
        change = blown_up if number % 16 == 15 else asked.change
        content = change(valid, rng)
        path.write_bytes(content)
        begin = time.process_time()
        try:
            code, said = asked.read(path)
        except BaseException as error:
            code, said = 70, repr(error)[:300]
        seconds = time.process_time() - begin
        path.write_bytes(valid)
        codes[code] = codes.get(code, 0) + 1
        faulty = code not in (0, 2, 3) or "Traceback" in said
        if faulty or (code == 2 and not told(said, path)):
            faults.append((asked.name, number, code, said[:300]))
        elif code == 2 and seconds > (
            SECONDS if len(content) < LARGE / 2 else SECONDS_LARGE
        ):
            faults.append((asked.name, number, f"{seconds:.1f} s", said[:200]))
    for code, count in codes.items():
        counted(f"mutated files, seed {SEED}: exit code {code}", count)
    assert not faults, "\n".join(map(str, faults))
