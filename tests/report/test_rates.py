"""Rates of a step: FLOPs as published formulas and PyTorch count them, MFU, days of a run."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gnnplace
from gnnplace.errors import InputError
from gnnplace.plans.answers import count_model_flops
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.plan import InputEntry, MemoryEntry, PlanFile
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.report.rates import parse_token_count, rates_line, run_line, utilization
from gnnplace.tracing.models import make_workload

MEMORY = MemoryEntry(state=1.0, activations=1.0, working=1.0, slack=1.0)


def file(**changed):
    made = {
        "model": "toy", "batch": 64, "precision": "bf16-mixed", "flops": 8 * 312e12 / 2,
        "memory": {f"gpu:{k}": MEMORY for k in range(8)}, "cluster": "nvlink-a100-8",
        "cluster_file": None, "inputs": [InputEntry(name="x", shape=[64, 1024], dtype="int64")],
    }  # fmt: skip
    return PlanFile.model_construct(**made | changed)


def test_flops_are_those_of_the_published_formula():
    """PaLM, appendix B: 6 N + 12 L H Q T a token, N without embeddings, the head among them."""
    layers, width, heads, length, words, batch = 2, 64, 4, 32, 128, 8
    spec = (f"hf:gpt2?n_layer={layers}&n_embd={width}&n_head={heads}&vocab_size={words}"
            f"&n_positions={length}&length={length}")  # fmt: skip
    chain = capture_chain(TrainingJob(spec, batch=batch), make_preset("nvlink-a100-8"))
    matrices = layers * 12 * width**2 + words * width
    each = 6 * matrices + 12 * layers * width * length
    assert count_model_flops(chain) == pytest.approx(batch * length * each)


def test_flops_are_those_that_pytorch_counts():
    workload = make_workload("mlp")
    counter = FlopCounterMode(display=False)
    inputs, target = workload.inputs
    with counter:
        workload.loss(workload.model(inputs.requires_grad_()), target).backward()
    chain = capture_chain(TrainingJob("mlp"), make_preset("nvlink-a100-8"))
    assert count_model_flops(chain) == pytest.approx(counter.get_total_flops())
    assert torch.is_grad_enabled()


def test_mfu_is_half_where_a_step_could_take_half():
    """A100: 312 TFLOP/s of dense bf16."""
    assert utilization(file(), 1.0) == pytest.approx(0.5)
    assert utilization(file(cluster="no such"), 1.0) is None
    assert utilization(file(flops=None), 1.0) is None
    line = rates_line(file(), 1.0)
    assert line == "65,536 tokens/s, 8,192 a device, 156 TFLOP/s a device, MFU 50.0%"


def test_examples_that_are_no_tokens_are_counted_as_examples():
    images = file(
        inputs=[InputEntry(name=None, shape=[64, 3, 8, 8], dtype="float32")], flops=None
    )
    assert images.tokens is None
    assert rates_line(images, 2.0) == "32 examples/s, 4 a device"
    with pytest.raises(InputError, match="no rows of tokens"):
        run_line(images, 1.0, 1e9)


def test_days_and_device_hours_of_a_run():
    assert run_line(file(), 1.0, 65536 * 86400.0) == (
        "5.66B tokens: 1 days, 192 device hours"
    )


@pytest.mark.parametrize(
    ("text", "count"), [("15T", 15e12), ("300b", 3e11), ("1.5e9", 1.5e9), ("2K", 2e3)]
)
def test_numbers_of_tokens(text, count):
    assert parse_token_count(text) == count


@pytest.mark.parametrize("text", ["", "many", "0", "-1", "nan", "inf"])
def test_what_is_no_number_of_tokens_is_one_line(text):
    with pytest.raises(InputError, match="must be a number of tokens"):
        parse_token_count(text)


def test_stages_that_are_alike_are_one_line():
    """A real plan of 8 stages; it is captured in 2 s."""
    from gnnplace.report.plans import stage_lines

    spec = "hf:llama?num_hidden_layers=8&hidden_size=64&num_attention_heads=4&vocab_size=128" \
           "&intermediate_size=96&num_key_value_heads=4&length=32"  # fmt: skip
    (plan,) = gnnplace.plan(
        spec, "nvlink-a100-8", batch=8, given="pp=8,layers=equal,microbatch_size=1"
    )
    lines = stage_lines(plan.file)
    assert len(plan.file.stages) == 8
    assert [line.split(":")[0] for line in lines] == [
        "  stage 0",
        "  stages 1 to 6",
        "  stage 7",
    ]
    assert (
        lines[1] == "  stages 1 to 6: 1 layers each, 1 x 1 devices from gpu:1 to gpu:6"
    )


def test_many_stages_that_begin_in_the_middle_of_layers_are_few_lines():
    """The model of 26 layers is captured in 3 s: sixteen stages, cut inside of layers."""
    from gnnplace.report.plans import STAGE_LINES, stage_lines

    model = (
        "hf:gpt2?n_layer=26&n_embd=64&n_head=4&vocab_size=128&n_positions=32&length=32"
    )
    words = "pp=16,microbatch_size=1"
    (plan,) = gnnplace.plan(model, "dgx-h100-2x8", batch=16, given=words)
    lines = stage_lines(plan.file)
    assert len(lines) <= STAGE_LINES < len(plan.file.stages) == 16
    assert any("layers each" in line for line in lines)
