"""Plans on real processes, beside the model as the user has it; and workers that fail."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import ExecutionError, FormatError, MismatchError
from gnnplace.plans.plan import Plan
from gnnplace.run.planned.running import run_plan
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for, toy, toy_plan


def test_stages_replicas_and_waiting_weights_train_as_one_device():
    """ZeRO 3 over two replicas, two V-shaped stages a rank, all recomputed, a skip over all."""
    workload = toy(depth=4)
    words = "pp=2,dp=2,zero=3,microbatch_size=2,schedule=v,recompute=full"
    found = run_plan(plan_for(workload, words), lambda: toy(depth=4), train=3, steps=1)
    assert found.passed, (found.verification.summary(), found.losses, found.expected)
    assert found.single < 1e-5
    assert found.measured > 0
    assert found.verification.tensors == 1 + len(
        dict(toy(depth=4).model.named_parameters())
    )


def split_by_hand(plan):
    """The plan with every block's products split as Megatron-LM does, and norms by rows."""
    stages = []
    for stage in plan.file.stages:
        told = {}
        for name in stage.members:
            if name.startswith("blocks.") and name.endswith((".up", ".relu")):
                told[name] = ["R", "R", "S1"]
            if name.endswith(".down"):
                told[name] = ["R", "R", "P"]
            if name.endswith(".norm"):
                # Gradients of its parameters are sums over shards.
                told[name] = ["R", "R", "S0"]
        stages.append(stage.model_copy(update={"placements": told}))
    return replace(plan, file=plan.file.model_copy(update={"stages": stages}))


def test_stages_and_shards_train_as_one_device():
    """Weights wait and all is recomputed; the bias of a sum over shards is added once."""
    words = "pp=2,tp=2,microbatch_size=4,schedule=zero-bubble,recompute=full"
    plan = split_by_hand(toy_plan(words))
    assert {"blocks.0.up", "blocks.0.down"} <= set(plan.file.stages[0].placements)
    found = run_plan(plan, toy, train=3, steps=1)
    assert found.passed, (found.verification.summary(), found.losses, found.expected)
    assert found.verification.different  # another order of sums


class Tokens(nn.Module):
    """Two blocks on tokens, as transformers have them without attention."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 16),
                nn.ReLU(),
                nn.Linear(16, width),
            )
            for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def tokens():
    torch.manual_seed(0)
    inputs = (torch.randn(8, 4, 8), torch.randn(8, 4, 8))
    return Workload("Tokens", Tokens(), inputs, functional.mse_loss)


def adapted():
    """The same with all but biases and norms frozen."""
    workload = tokens()
    for parameter in workload.model.parameters():
        parameter.requires_grad_(parameter.dim() == 1)
    return workload


def test_frozen_matrices_are_parted_by_zero_and_cut_by_tensor_parallelism():
    """What is frozen has no gradients and moments; each shard's half of it is parted in two."""
    words = "dp=2,tp=2,zero=3,microbatch_size=2"
    plan = plan_for(adapted(), words)
    parameters = list(adapted().model.parameters())
    frozen = sum(p.numel() for p in parameters if not p.requires_grad)
    learned = sum(p.numel() for p in parameters if p.requires_grad)
    for memory in plan.file.memory.values():
        assert 4 * frozen / 4 < memory.state < 4 * frozen / 4 + 16 * learned
    found = run_plan(plan, adapted, train=3, steps=1)
    assert found.passed, (found.verification.summary(), found.losses, found.expected)


def test_shards_hand_on_their_tokens_and_share_the_optimizer_of_what_each_has_whole():
    """Two stages of two shards; norms are on every shard, their Adam parted over the shards."""
    plan = plan_for(tokens(), "pp=2,tp=2,zero=1,microbatch_size=2", 4)
    assert [stage.border for stage in plan.file.stages] == ["tokens", "tokens"]
    assert plan.file.stages[0].placements["blocks.0.1.weight"][-1] in ("S0", "S1")
    by_rows = [
        stage.model_copy(
            update={
                "placements": stage.placements
                | {
                    name: ["R", "R", "S1"]
                    for name in stage.members
                    if name.endswith(".0")
                }
            }
        )
        for stage in plan.file.stages
    ]
    plan = replace(plan, file=plan.file.model_copy(update={"stages": by_rows}))
    found = run_plan(plan, tokens, train=3, steps=1)
    assert found.passed, (found.verification.summary(), found.losses, found.expected)


def test_one_stage_after_the_other_is_bitwise_one_device_but_for_tied_weights():
    plan = toy_plan("pp=3,microbatch_size=4,schedule=zero-bubble", 3)
    found = run_plan(plan, toy, train=0, steps=0)
    assert found.passed
    assert {d.name for d in found.verification.different} <= {
        "gradient of first.weight"
    }


@pytest.mark.parametrize(
    "precision", [pytest.param("16-mixed", marks=pytest.mark.campaign), "bf16-master"]
)
def test_mixed_precision_over_replicas_trains_as_one_device(precision):
    plan = toy_plan("dp=2,microbatch_size=4,zero=1", 2, precision=precision)
    found = run_plan(plan, toy, train=5, steps=0)
    assert found.passed


def dies():
    """A workload whose worker for the first device is killed while the others wait for it."""
    workload = toy()
    if torch.distributed.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return workload


def raises():
    raise ValueError("no such file: data.bin")


def hangs():
    if torch.distributed.get_rank() == 1:
        time.sleep(60.0)
    return toy()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (dies, "worker 'cpu:0' was killed by SIGKILL before its first action"),
        (raises, "ValueError: no such file: data.bin"),
        (hangs, "no progress for 4 s"),
    ],
)
def test_workers_that_fail_end_the_run_in_one_line(make, told):
    plan = toy_plan("pp=2,microbatch_size=4", 2)
    start = time.monotonic()
    with pytest.raises(ExecutionError, match=told) as fault:
        run_plan(plan, make, train=0, steps=0, timeout=4.0)
    assert "\n" not in str(fault.value)
    assert time.monotonic() - start < 30.0


def test_bad_actions_and_other_devices_are_refused_before_anything_starts():
    plan = toy_plan("pp=2,microbatch_size=4", 2)
    rows = [list(row) for row in plan.file.actions]
    rows[0].remove("0SEND_F0")
    broken = Plan(plan.file.model_copy(update={"actions": rows}))
    with pytest.raises(FormatError, match="0SEND_F0 is missing"):
        run_plan(broken, raises)
    stages = [s.model_copy(update={"devices": [[[f"gpu:{k}"]]]}) for k, s in
              enumerate(plan.file.stages)]  # fmt: skip
    memory = {f"gpu:{k}": plan.file.memory[f"cpu:{k}"] for k in range(2)}
    file = plan.file.model_copy(update={"stages": stages, "memory": memory})
    with pytest.raises(MismatchError, match="'gpu:0' is no worker of this machine"):
        run_plan(replace(plan, file=file), raises)
