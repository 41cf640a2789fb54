"""The page of a plan: all its parts, well-formed, with the passes of its actions."""

import numpy as np
import pytest

from gnnplace.cli.main import run
from gnnplace.plans.answers import find_plans, price_given_plan
from gnnplace.plans.job import SearchOptions
from gnnplace.plans.order.rows import iterate_passes
from gnnplace.plans.plan import Plan, StageEntry
from gnnplace.plans.reading import plan_from_data
from gnnplace.report.plans import NAMES, plan_page, split_words
from tests.plans.toys import chain, cluster
from tests.report.embedded import held, unpacked


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "v", "interleaved:2"])
def test_a_page_has_every_pass_and_every_device(schedule):
    model = chain(np.random.default_rng(0), count=6, batch=8)
    plan = price_given_plan(
        model, cluster(2), f"pp=2,microbatch_size=1,schedule={schedule}"
    )
    text = plan_page(plan_from_data(plan.to_data(), "plan"))
    [graph], [step] = held(text)["graphs"], held(text)["steps"]
    passes = [
        str(action) for row in plan.file.actions for action in iterate_passes(row)
    ]
    assert sorted(graph["names"]) == sorted([*passes, "end 0", "end 1"])
    assert step["step_time"] == pytest.approx(plan.step_time)
    assert step["devices"] == ["rank 0", "rank 1"]
    kinds = [graph["kinds"][k] for k in unpacked(graph["kind"], "u1")]
    assert kinds == [_named(name) for name in graph["names"]]
    for rank, (_, sizes) in enumerate(step["memory"]):
        planned = (
            plan.file.memory[plan.file.stages[rank].rows[0][0]].model_dump().values()
        )
        assert unpacked(sizes, "f4").max() <= sum(planned) * (1 + 1e-6)
        # With several stages a rank, not all of them are full at once.
        if schedule == "1f1b":
            assert unpacked(sizes, "f4").max() == pytest.approx(sum(planned), rel=1e-6)
    assert text.count('class="share"') == len(plan.file.memory)
    assert "gpu:1" in text


def test_the_mesh_has_every_device_with_its_bytes():
    """Two ranks of two replicas and two shards; a tooltip a device."""
    model = chain(np.random.default_rng(0), count=6, batch=8)
    plan = price_given_plan(model, cluster(8), "dp=2,shards=2,pp=2,microbatch_size=1")
    text = plan_page(plan_from_data(plan.to_data(), "plan"))
    for rank, stage in enumerate(plan.file.stages):
        for replica, row in enumerate(stage.rows):
            for shard, device in enumerate(row):
                size = f"{plan.file.memory[device].all / 1e9:.1f} GB"
                assert f"stage {rank}, replica {replica}, shard {shard}: {size}" in text


def test_a_mesh_of_thousands_of_devices_is_not_drawn():
    model = chain(np.random.default_rng(0), count=6, batch=256)
    plan = price_given_plan(model, cluster(2), "pp=2,microbatch_size=1")
    stage = plan.file.stages[0]
    wide = stage.model_copy(update={"devices": [[[f"gpu:{k}"]] for k in range(129)]})
    file = plan.file.model_copy(update={"stages": [wide, plan.file.stages[1]]})
    assert "GB of each device" in plan_page(plan)
    assert "GB of each device" not in plan_page(Plan(file))


def _named(name):
    return NAMES[
        "end" if name.startswith("end") else next(k for k in name if k in "FIWB")
    ]


def test_a_stage_is_found_by_its_modules():
    """Every module of the plan is covered by its stage, whose passes bear its name."""
    model = chain(np.random.default_rng(0), count=6, batch=8)
    plan = price_given_plan(model, cluster(2), "pp=2,microbatch_size=1,schedule=1f1b")
    [graph] = held(plan_page(plan))["graphs"]
    for k, stage in enumerate(plan.file.stages):
        place = graph["modules"].index(f"stage {k}")
        assert set(graph["covers"][str(place)]) >= {*stage.modules, *stage.members}


def test_a_frontier_falls():
    model = chain(np.random.default_rng(1), count=6, batch=8)
    points = find_plans(model, cluster(4, memory=150.0), SearchOptions(budget=0.0))[
        0
    ].file.frontier
    assert [b for b, _ in points] == sorted(b for b, _ in points)
    assert [s for _, s in points] == sorted((s for _, s in points), reverse=True)


def test_messages_are_no_passes():
    assert [str(x) for x in iterate_passes(["0SEND_F1", "12W3", "END"])] == ["12W3"]


def test_the_command_line_writes_it(tmp_path, capsys):
    model = "gpt2?layers=2&width=64&heads=4&vocabulary=128&length=32&batch=8"
    plan, first, second = (str(tmp_path / n) for n in ("plan.json", "a.html", "b.html"))
    arguments = [
        "plan",
        model,
        "--cluster",
        "nvlink-a100-8",
        "--budget",
        "0",
        "--html",
        first,
    ]
    assert run([*arguments, "-o", plan]) == 0
    assert run(["report", plan, "-o", second]) == 0
    assert "Timeline" in (tmp_path / "a.html").read_text()
    assert "Timeline" in (tmp_path / "b.html").read_text()


def split_stage(placements, border="tokens", shards=4):
    devices = [[[f"gpu:{k}" for k in range(shards)]]]
    return StageEntry(
        modules=["layers"], members=["layers.0.attn.scaled_dot_product_attention"], devices=devices,
        border=border, placements={name: ["R", "R", word] for name, word in placements.items()},
    )  # fmt: skip


ATTENTION = "layers.0.attn.scaled_dot_product_attention"
COLUMNS = {"layers.0.mlp.up.weight": "S0", "layers.0.mlp.down.weight": "S1"}


@pytest.mark.parametrize(
    ("placements", "border", "words"),
    [
        ({"layers.0.attn.q.weight": "S0", "layers.0.attn.q": "S2", ATTENTION: "S1", **COLUMNS},
         "tokens", "attention: Megatron with sequence parallelism, "
         "feed-forward: Megatron with sequence parallelism"),
        ({"layers.0.attn.q": "S1", ATTENTION: "S1", **COLUMNS}, "whole",
         "attention: Ulysses, feed-forward: Megatron"),
        ({"layers.0.attn.q.weight": "S0", ATTENTION: "S1", "layers.1.qkv.weight": "S0/3",
          "layers.1.matmul": "S1", "layers.1.softmax": "S1", "layers.1.out.weight": "S1",
          "layers.1.gelu": "S2"}, "whole", "attention: Megatron, feed-forward: Megatron"),
        ({"layers.0.mlp.up": "S1", "layers.0.mlp.gelu": "S1", "layers.0.mlp.down": "S1"}, "tokens",
         "attention: whole, feed-forward: tokens, weights whole"),
        ({ATTENTION: "S1", "layers.0.mlp.experts": "P:experts", "cross_entropy": "P:classes"},
         "whole", "attention: Ulysses, experts: experts apart, loss: classes apart"),
    ],
)  # fmt: skip
def test_splits_are_told_in_the_words_of_the_field(placements, border, words):
    stage = split_stage(placements, border)
    assert split_words(stage) == f"over 4 shards {words}"
    assert split_words(split_stage(placements, border, shards=1)) == ""
