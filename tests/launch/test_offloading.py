"""State in the host's memory: searched where nothing fits, written and read by launchers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InfeasibleError
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.registry import get_launcher, get_reader
from gnnplace.launch.searching import (
    LaunchAnswer,
    LauncherSearch,
    price_launch_plan,
)
from gnnplace.launch.torchtitan import MODELS

SIZES = replace(MODELS["llama3_8b"][1], batch=16)
CLUSTER = "4xH100"
SMALL = 24e9
"""Bytes of a device: 8 billion parameters in half precision, and little else."""
OFFLOADED = {
    "megatron-lm": "optimizer",
    "megatron-bridge": "optimizer",
    "deepspeed": "optimizer",
    "accelerate": "optimizer+parameters",
    "torchtitan": "optimizer+parameters",
}


def search(*, offloads: bool) -> LauncherSearch:
    """Return the search of plans of a model that four small devices cannot hold."""
    return LauncherSearch(
        SIZES, resolve_cluster(CLUSTER), memory_limit=SMALL, offloads=offloads
    )


@pytest.fixture(scope="module")
def answers() -> dict[str, LaunchAnswer]:
    """Return the fastest plan of each launcher that has a word for the host's memory."""
    found = search(offloads=True)
    return {launcher: found.find(launcher) for launcher in OFFLOADED}


@pytest.mark.parametrize("launcher", OFFLOADED)
def test_the_host_is_used_where_nothing_else_fits(answers, launcher):
    plan = answers[launcher].plan
    assert plan.offload == OFFLOADED[launcher]
    assert answers[launcher].answer.feasible
    assert f"with offload={plan.offload}" in answers[launcher].answer.untested or (
        answers[launcher].framework == "torchtitan"
    )
    with pytest.raises(InfeasibleError, match=launcher):
        search(offloads=False).find(launcher)


@pytest.mark.parametrize("launcher", OFFLOADED)
def test_a_launchers_file_says_it(answers, launcher):
    answer = answers[launcher]
    text = get_launcher(launcher).write(answer.plan, [], 4)
    plan = get_reader(launcher).read(text, "file", {})
    assert plan.offload == answer.plan.offload
    assert not any("offload" in str(reason) for reason in plan.remarks)
    priced = price_launch_plan(
        replace(plan, sizes=SIZES, batch=SIZES.batch),
        launcher,
        CLUSTER,
        memory_limit=SMALL,
    )
    assert priced.answer.step_time == pytest.approx(answer.answer.step_time, rel=1e-9)


@pytest.mark.parametrize("cluster", ["1xRTX4090", "1xA10G"])
def test_one_device_of_a_kind_without_measurements_is_enough_for_deepspeed(cluster):
    devices = resolve_cluster(cluster)
    found = LauncherSearch(SIZES, devices, memory_limit=SMALL, offloads=True).find(
        "deepspeed"
    )
    assert (found.plan.zero, found.plan.offload) == (3, "optimizer+parameters")
    plan = get_reader("deepspeed").read(
        get_launcher("deepspeed").write(found.plan, [], 1), "file", {}
    )
    assert (plan.zero, plan.offload) == (3, "optimizer+parameters")


def test_a_launcher_without_it_is_told_that_nothing_fits():
    with pytest.raises(InfeasibleError, match="nothing fits"):
        search(offloads=True).find("nanotron")
    nearest = dict(
        get_launcher("nanotron").nearest(LaunchPlan(dp=4, offload="optimizer", batch=4))
    )
    assert any("offload=optimizer" in line for line in nearest)


FILES = {
    "a disk": ("deepspeed", '{"train_batch_size": 8, "zero_optimization": {"stage": 3, '
               '"offload_optimizer": {"device": "nvme"}}}', "none"),
    "a share": ("deepspeed", '{"train_batch_size": 8, "zero_optimization": {"stage": 3, '
                '"offload_optimizer": {"device": "cpu", "ratio": 0.4}}}', "none"),
    "both": ("deepspeed", '{"train_batch_size": 8, "zero_optimization": {"stage": 3, '
             '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}',
             "optimizer+parameters"),
    "the old key": ("deepspeed", '{"train_batch_size": 8, "zero_optimization": {"stage": 2, '
                    '"cpu_offload": true}}', "optimizer"),
    "accelerate's DeepSpeed": ("accelerate", "distributed_type: DEEPSPEED\nnum_processes: 8\n"
                               "deepspeed_config:\n  zero_stage: 2\n"
                               "  offload_optimizer_device: cpu\n", "optimizer"),
    "FSDP 2 with whole parameters": ("accelerate", "distributed_type: FSDP\nnum_processes: 8\n"
                                     "fsdp_config:\n  fsdp_version: 2\n"
                                     "  fsdp_reshard_after_forward: false\n"
                                     "  fsdp_offload_params: true\n", "none"),
    "axolotl": ("axolotl", "base_model: a/b\nmicro_batch_size: 1\nfsdp_version: 2\nfsdp_config:\n"
                "  offload_params: true\n", "optimizer+parameters"),
    "llm-foundry": ("llm-foundry", "global_train_batch_size: 8\nmax_seq_len: 2048\nfsdp_config:\n"
                    "  sharding_strategy: FULL_SHARD\n  cpu_offload: true\n",
                    "optimizer+parameters"),
    "Lightning": ("lightning", "trainer:\n  devices: 4\n  strategy: deepspeed_stage_2_offload\n",
                  "optimizer"),
    "GPT-NeoX": ("gpt-neox", "pipe_parallel_size: 1\nmodel_parallel_size: 1\nnum_layers: 2\n"
                 "hidden_size: 64\nnum_attention_heads: 2\nseq_length: 128\n"
                 "max_position_embeddings: 128\ntrain_micro_batch_size_per_gpu: 1\n"
                 "zero_optimization:\n  stage: 1\n  offload_optimizer:\n    device: cpu\n",
                 "optimizer"),
    "torchtitan's TOML": ("torchtitan", "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\n"
                          "seq_len = 8192\nenable_cpu_offload = true\n", "optimizer+parameters"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_say_it_or_a_line_does(name):
    launcher, text, offload = FILES[name]
    plan = get_reader(launcher).read(text, "file", {})
    assert plan.offload == offload
    told = any(
        "offload" in str(reason) or "disk" in str(reason) for reason in plan.remarks
    )
    assert told == (offload == "none")
