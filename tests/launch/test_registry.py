"""Random plans go out to every launcher and come back, or what differs is named."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import pytest

from gnnplace.costs.optimizers import OPTIMIZERS
from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.launch_plan import (
    PRICED_OPTIMIZERS,
    LaunchPlan,
)
from gnnplace.launch.registry import (
    LAUNCHERS,
    READERS,
    find_told_launcher,
    read_launch_file,
)
from gnnplace.launch.torchtitan import MODELS
from gnnplace.launch.writing import unlike
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.launchers import NAMES, READ_NAMES

NAMED = {  # what a line begins with for a field that is another one then
    "schedule": "schedule", "chunks": "schedule", "layers": ("schedule", "layers"),
    "precision": "precision", "zero": "zero", "recompute": "recompute", "sp": "sp",
    "optimizer": "optimizer", "ep": "ep", "etp": "ep", "compile": "compile",
    "cuda_graphs": "cuda_graphs", "gradients": "gradients",
}  # fmt: skip

MIXTURES = (
    DecoderSizes(32, 4096, 32, 8, 14336, 4096, 32000, experts=ExpertLayers(8, 2, 14336)),
    MODELS["qwen3_30b_a3b"][1], MODELS["deepseek_v3_16b"][1], MODELS["deepseek_v3_671b"][1],
)  # fmt: skip


def drawn(draw: random.Random) -> LaunchPlan:
    """Any plan, of Llama 3, of a GPT-2, or of a mixture of experts."""
    pp = draw.choice([1, 2, 4])
    schedule = (
        draw.choice(["1f1b", "interleaved", "zero-bubble", "v", "gpipe"])
        if pp > 1
        else "1f1b"
    )
    chunks = 2 if schedule in ("interleaved", "v") else 1
    gpt = DecoderSizes(32, 256, 8, 8, 1024, 64, 512, gated=False)
    own = draw.choice([MODELS["llama3_8b"][1], gpt, draw.choice(MIXTURES)])
    cuts = sorted(draw.randint(0, own.layers) for _ in range(pp * chunks - 1))
    bounds = [0, *cuts, own.layers]
    layers = tuple(b - a for a, b in itertools.pairwise(bounds)) if pp > 1 else None
    dp, size = draw.choice([1, 2, 3]), draw.choice([1, 2, 4])
    tp, ep = (
        draw.choice([1, 2, 4]),
        draw.choice([1, dp]) if own.experts and dp < 3 else 1,
    )
    return LaunchPlan(
        dp=dp, tp=tp, ep=ep, etp=1 if tp > 1 and own.experts and draw.random() < 0.3 else None,
        pp=pp, sp=tp == 1 or draw.random() < 0.5,
        chunks=chunks, layers=layers, microbatch_size=size, batch=dp * size * 8,
        zero=draw.choice([0, 1, 2, 3]) if dp > 1 else 0,
        recompute=draw.choice(["none", "full", "selective", "block:2", "uniform:2"]),
        schedule=schedule, precision=draw.choice(["32-true", "bf16-mixed", "16-mixed", "bf16-true",
                                                  "bf16-master", "16-master"]),
        gradients="same", optimizer=draw.choice(["sgd", "adam", "adamw"]),
        sizes=replace(own, length=draw.choice([64, 128])), compile=draw.random() < 0.3,
        cuda_graphs=draw.choice([None, None, "layers", "iteration"]),
    )  # fmt: skip


def differing(one: LaunchPlan, other: LaunchPlan) -> list[str]:
    compared = [f.name for f in fields(one) if f.compare]
    return [name for name in compared if getattr(one, name) != getattr(other, name)]


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_plans_come_back_or_say_what_they_lose(name):
    """Up to 6 s: YAML is read and written in Python."""
    launcher, draw, written = LAUNCHERS[name], random.Random(name), 0
    for _ in range(100):
        before = plan = drawn(draw)
        for told, after in launcher.nearest(plan):
            changed = differing(before, after)
            assert all(told.startswith(NAMED[field]) for field in changed), (
                told,
                changed,
            )
            before = after
        text = written_by(name, before)
        if text is None:
            continue
        written += 1
        back = launcher.read(text, "file")
        named = {line.split()[0] for line in unlike(before, launcher, text)}
        lost = set(differing(before, back)) - {"notes", "sizes", "layers"}
        assert lost <= named | {"dp", "gradients"}, (lost, named)
        assert back.dp is None or (back.dp, back.microbatches) == (
            before.dp,
            before.microbatches,
        )
        if "layers" not in named and back.layers is not None:
            assert back.layers == before.layers
        assert back.sizes in (None, before.sizes)
        assert find_told_launcher(text, "file") == name
    assert written >= 20


def written_by(name: str, plan: LaunchPlan) -> str | None:
    """The text, or None where the launcher cannot say it, in words that name it."""
    try:
        return LAUNCHERS[name].write(plan, ["told\n--tensor-model-parallel-size 9"], 1)
    except InfeasibleError as error:
        told = str(error)
    assert told.startswith(name.replace("bridge", "lm"))
    return None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    ["", "\x00", "[" * 5000, "a: &a [*a]", "!!python/object:os.system {}", "--num-layers", "{",
     "x" * 9999, "\n" * 200000, "model.x =" + " " * 200000, "model:\n- 1\ntokens: 3\n",
     "b: &b [x,x]\nnum_processes: &c [*b,*b]\ntokens: {micro_batch_size: *c}",
     '{"zero_optimization": 3, "train_batch_size": -1}', "def f(: pass",
     "model.tensor_model_parallel_size=$(rm -rf /tmp/x)\n", "--num-layers $(touch /tmp/never)\n"],
)  # fmt: skip
def test_what_is_no_file_of_a_launcher_is_one_line(name, text):
    """Two of them take over a second: 5,000 brackets of YAML."""
    try:
        told = LAUNCHERS[name].read(text, "file").words
    except FormatError as error:
        told = f"{error}"
    assert "\n" not in told
    assert len(told) < 400


def test_a_function_of_a_module_is_named_behind_the_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from torchtitan.models.llama3.config_registry import llama3_8b\n"
        "def one():\n    return llama3_8b()\n"
        "def two():\n    config = one()\n    config.parallelism.tensor_parallel_degree = 4\n"
        "    raise SystemExit\n"
    )
    assert read_launch_file(f"{path}:two").tp == 4
    with pytest.raises(
        FormatError, match="say which function, as FILE:NAME; it has one, two"
    ):
        read_launch_file(path)


def test_names_of_readers_are_those_of_their_table():
    assert set(READ_NAMES) == set(READERS)


def test_optimizers_with_a_price_are_those_of_the_costs():
    assert set(PRICED_OPTIMIZERS) == set(OPTIMIZERS)
