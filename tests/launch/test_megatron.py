"""Megatron-LM: the words of real flags, uneven stages as it makes them, nothing run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.megatron import format_layout, nearest_megatron, write_megatron
from gnnplace.launch.megatron_plan import parse_layout
from gnnplace.launch.megatron_script import read_megatron
from gnnplace.launch.registry import get_launcher
from gnnplace.launch.writing import nearest_plan, write_launch_plan
from gnnplace.plans.decoders.decoder import DecoderSizes

SIZES = DecoderSizes(12, 512, 8, 8, 2048, 1024, 50257, gated=False, tied=False)
# `tests/functional_tests/test_cases/*/*/model_config.yaml` of Megatron-LM d98e8a64: the flags that
# say a plan, as they stand there.
UNEVEN = """
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --log-params-norm: true
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --data-path: ${DATA_PATH}/text/my-gpt3_00_text_document
  --tensor-model-parallel-size: 1
  --pipeline-model-parallel-size: 4
  --untie-embeddings-and-output-weights: true
  --dist-ckpt-strictness: log_all # backward compatibility for TE changes
  --bf16: true
  --decoder-first-pipeline-num-layers: 2
  --decoder-last-pipeline-num-layers: 2
"""
ACCOUNTED = """
MODEL_ARGS:
  --num-layers: 6
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --tensor-model-parallel-size: 1
  --pipeline-model-parallel-size: 4
  --num-virtual-stages-per-pipeline-rank: 2
  --untie-embeddings-and-output-weights: true
  --bf16: true
  --account-for-embedding-in-pipeline-split: true
  --account-for-loss-in-pipeline-split: true
"""
DEEPSEEK = """
MODEL_ARGS:
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 4
  --pipeline-model-parallel-layout: Et*2|(tt|)*5t|tmL
  --expert-model-parallel-size: 16
  --context-parallel-size: 1
  --expert-tensor-parallel-size: 1
  --use-distributed-optimizer: true
  --overlap-grad-reduce: true
  --overlap-param-gather: true
  --sequence-parallel: true
  --micro-batch-size: 1
  --global-batch-size: 512
  --seq-length: 4096
  --num-layers: 14 # original 61 layers
  --hidden-size: 7168
  --ffn-hidden-size: 18432
  --num-attention-heads: 128
  --swiglu: true
  --untie-embeddings-and-output-weights: true
  --multi-latent-attention: true
  --q-lora-rank: 1536
  --kv-lora-rank: 512
  --qk-head-dim: 128
  --qk-pos-emb-head-dim: 64
  --v-head-dim: 128
  --qk-layernorm: true
  --num-experts: 64 # local 4 + 1 shared, EP16
  --moe-layer-freq: ([0]*3+[1]*11)
  --moe-ffn-hidden-size: 2048
  --moe-shared-expert-intermediate-size: 2048
  --moe-router-topk: 8
  --moe-token-dispatcher-type: flex
  --bf16: true
"""
MIXTRAL = """
    --seq-length 4096 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --swiglu --untie-embeddings-and-output-weights --vocab-size 32000
    --group-query-attention --num-query-groups 8 --num-experts 8 --moe-router-topk 2
    --moe-token-dispatcher-type alltoall --bf16 --micro-batch-size 1 --global-batch-size 256
    --expert-model-parallel-size 8 --pipeline-model-parallel-size 4 --use-distributed-optimizer
"""  # `examples/mixtral/train_mixtral_8x7b_distributed.sh`
QWEN = """
TP=${TP:-4}
EP=${EP:-2}
MODEL_OPTIONS=" --tensor-model-parallel-size $TP --expert-model-parallel-size $EP \\
  --seq-length 8192 --global-batch-size 512 \\
  --untie-embeddings-and-output-weights --num-layers 48 --hidden-size 2048 \\
  --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 --group-query-attention \\
  --num-query-groups 4 --swiglu --num-experts 128 --moe-router-topk 8 --qk-layernorm \\
  --moe-ffn-hidden-size 768 --moe-layer-freq 1 --vocab-size 151936 --micro-batch-size 1 --bf16"
"""  # `examples/rl/model_configs/qwen3_30b_a3b_moe.sh`
SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=16
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
rm -rf "$(touch /tmp/never)"
TP="8"
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --fp16
    --lr 6.0e-5
)
MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size $TP
\t--pipeline-model-parallel-size ${PP:-16}
)
DATA_ARGS=("--vocab-size 51200" "--split '99,1,0'")
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} ${DATA_ARGS[@]} \\
    --save $CHECKPOINT_PATH --brand-new-flag 3
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNEVEN, "pp=4,layers=2+4+4+2,microbatch_size=4,gradients=fp32"),
        (ACCOUNTED, "pp=4,layers=0+1+1+1+1+1+1+0,microbatch_size=4,gradients=fp32,"
                    "schedule=interleaved:2"),
        (DEEPSEEK, "tp=2,ep=8,etp=1,pp=4,layers=2+2+2+2+2+2+1+1,microbatch_size=1,zero=1,"
                   "gradients=fp32,schedule=interleaved:2"),
        (SCRIPT, "tp=8,pp=16,sp=off,microbatch_size=1"),
    ],
)  # fmt: skip
def test_real_files_have_the_words_that_their_authors_mean(text, words):
    assert read_megatron(text, "file").words == words


def test_sizes_and_precision_come_from_the_flags():
    plan = read_megatron(SCRIPT, "file")
    assert plan.sizes == DecoderSizes(
        96, 12288, 96, 96, 49152, 2048, 51200, gated=False, tied=True
    )
    assert (plan.precision, plan.batch) == ("16-master", 1536)
    assert plan.notes == (
        "flags that are not known, and not priced: --brand-new-flag",
        "defaults of the script, where nothing is set: PP=16",
    )
    assert read_megatron(DEEPSEEK, "file").overlap == ("gradients", "parameters")


@pytest.mark.parametrize(
    ("text", "billions", "kind"),
    [
        (MIXTRAL, 46.7, "mixtral"),  # Jiang et al., 2024, arXiv 2401.04088
        (QWEN, 30.5, "qwen3_moe"),  # Qwen3, 2025, arXiv 2505.09388
        (DEEPSEEK.replace("layers: 14", "layers: 61").replace("*11", "*58")
         .replace("64 # local", "256 #").replace("Et*2|(tt|)*5t|tmL", "Et*8|(t*8|)*6t*5L")
         + "  --vocab-size: 129280\n", 671.0, "deepseek_v3"),  # DeepSeek-V3, arXiv 2412.19437
    ],
)  # fmt: skip
def test_a_mixtures_flags_have_its_published_parameters(text, billions, kind):
    plan = read_megatron(text, "file")
    assert plan.sizes is not None
    assert plan.sizes.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert plan.sizes.model.startswith(f"hf:{kind}?")
    again = read_megatron(write_megatron(plan.with_dp(512, "file"), [], 8), "file")
    assert (again.words.partition(",")[2], again.sizes) == (plan.words, plan.sizes)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("  --moe-layer-freq: ([0]*3+[1]*12)\n", "was .* before"),
        ("  --expert-tensor-parallel-size: 2\n", "was 1 before"),
    ],
)
def test_what_contradicts_of_experts_is_one_line(change, told):
    with pytest.raises(FormatError, match=told):
        read_megatron(DEEPSEEK + change, "file")


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("[1]*13", "is a pattern of 13 layers, and --num-layers is 14"),
        ("[1]*9999*9999*9999", "is no pattern"),
        ("__import__('os').system('touch /tmp/never')", "is no pattern"),
        ("[0]*7+[2]*7", "is no pattern"),
    ],
)
def test_a_pattern_of_layers_is_read_and_never_run(pattern, told):
    with pytest.raises(FormatError, match=told):
        read_megatron(DEEPSEEK.replace("([0]*3+[1]*11)", pattern), "file")


def test_experts_in_every_other_layer_are_in_no_sizes():
    plan = read_megatron(DEEPSEEK.replace("([0]*3+[1]*11)", "2"), "file")
    assert plan.sizes is None
    assert any("give --model" in note for note in plan.notes)


def test_experts_beside_tp_want_cut_tokens():
    """`MoELayer.forward` of its `core/transformer/moe/moe_layer.py` raises without."""
    plan = read_megatron(QWEN, "file")
    ((told, nearest),) = nearest_megatron(plan)
    assert told.startswith("sp=off")
    assert nearest.sp


def test_a_width_with_swiglu_is_megatrons():
    plan = read_megatron(UNEVEN + "  --swiglu: true\n", "file")
    assert plan.sizes is not None
    assert plan.sizes.feed_forward == int((4 * 512 * 2 / 3) / 64) * 64  # arguments.py


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("Et*3|tt|ttt|t*6L", (3, 2, 3, 6)),
        ("E|t*2|tt||L", (0, 2, 2, 0, 0)),
        ("Et|(tt|)*2t,L", (1, 2, 2, 1)),
        ("E,t|t|tL", (1, 1, 1)),
    ],
)
def test_a_layout_says_the_layers_of_every_stage(layout, layers):
    assert parse_layout(layout, "file") == layers
    assert parse_layout(format_layout(layers), "file") == layers


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("  --decoder-first-pipeline-num-layers: two\n", "was 2 before"),
        ("  --account-for-loss-in-pipeline-split: true\n", "give one of them"),
        ("  --pipeline-model-parallel-layout: tE|L\n", "give one of them"),
        ("  --recompute-granularity: full\n", "must be uniform or block"),
        ("  --recompute-granularity: some\n", "full or selective"),
        ("  --world-size: 6\n", "no multiple of tp x cp x pp"),
        (
            "  --num-query-groups: $(cat /etc/passwd)\n",
            "made by a shell, and nothing is run",
        ),
        ("  --context-parallel-size: 3\n", "no multiple of 2 x cp 3"),
        ("  --context-parallel-size -3\n", "'-3' is no whole number"),
    ],
)
def test_what_contradicts_is_one_line(change, told):
    with pytest.raises(FormatError, match=told) as caught:
        read_megatron(UNEVEN + change, "file")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layout",
    [
        "tE|L",
        "E|t",
        "Et|tL|",
        "Ex|L",
        "E(t|(t|)*2)*2L",
        "E" + "(t*9999)*9999" * 9 + "L",
    ],
)
def test_a_layout_without_its_ends_is_one_line(layout):
    with pytest.raises(FormatError, match="layout") as caught:
        parse_layout(layout, "file")
    assert "\n" not in str(caught.value)


def drawn(draw: random.Random) -> LaunchPlan:
    """A plan that Megatron-LM can run."""
    pp, chunks, count = (
        draw.choice([1, 2, 4]),
        draw.choice([1, 1, 2]),
        draw.choice([4, 8]),
    )
    chunks = chunks if pp > 1 else 1
    layers = tuple(draw.randint(0, 4) for _ in range(pp * chunks)) if pp > 1 else None
    if layers is not None and (len(set(layers)) == 1):
        layers = (*layers[:-1], layers[-1] + 1)
    total = sum(layers) if layers else 12
    tp, dp = draw.choice([1, 2, 4]), draw.choice([1, 2, 3])
    size = draw.choice([1, 2])
    return LaunchPlan(
        dp=dp, tp=tp, pp=pp, sp=tp == 1 or draw.random() < 0.5, chunks=chunks, layers=layers,
        microbatch_size=size, batch=dp * size * count, zero=draw.choice([0, 1, 2, 3]),
        recompute=draw.choice(["none", "full", "selective", "block:2", "uniform:3"]),
        schedule="interleaved" if chunks > 1 else "1f1b",
        precision=draw.choice(["bf16-master", "16-master", "32-true"]),
        gradients="same", optimizer=draw.choice(["adamw", "sgd"]),
        overlap=draw.choice([(), ("gradients",), ("gradients", "parameters")]),
        sizes=replace(SIZES, layers=max(total, 1), kv_heads=draw.choice([4, 8]),
                      gated=draw.random() < 0.5, tied=draw.random() < 0.5),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_a_plan_comes_back_as_it_was_written(seed):
    plan = drawn(random.Random(seed))
    if plan.layers is not None and not sum(plan.layers):
        return
    if plan.precision == "16-master":
        plan = replace(plan, gradients="fp32")  # what --fp16 means
    lines = ["a plan of x\nrm -rf /"]
    text = write_megatron(plan, lines, 8)
    assert "\nrm" not in text
    back = read_megatron(text, "file")
    assert back == plan


def test_what_it_cannot_say_is_named_with_the_nearest():
    plan = LaunchPlan(dp=1, pp=2, chunks=2, layers=(1, 2, 3, 2), microbatch_size=1, batch=3,
                      schedule="v", precision="bf16-mixed", sizes=SIZES)  # fmt: skip
    steps = list(nearest_megatron(plan))
    assert [told.split(":")[0] for told, _ in steps] == [
        "schedule v",
        "precision bf16-mixed",
    ]
    last = steps[-1][1]
    assert (last.schedule, last.layers, last.precision) == (
        "1f1b",
        (3, 5),
        "bf16-master",
    )
    assert (
        next(nearest_megatron(replace(plan, batch=4)))[1].full_schedule
        == "interleaved:2"
    )


def test_without_sizes_there_is_no_file():
    with pytest.raises(InfeasibleError, match="sizes of a decoder"):
        write_megatron(LaunchPlan(dp=1, microbatch_size=1, batch=1), [])


def test_heads_of_a_width_of_their_own_come_back():
    sizes = DecoderSizes(4, 1024, 16, 8, 3072, 512, 1000, own_head_size=128)
    plan = LaunchPlan(
        dp=1, microbatch_size=1, batch=1, sizes=sizes, precision="bf16-master"
    )
    text = write_megatron(plan, [], 8)
    assert "--kv-channels 128" in text
    assert read_megatron(text, "file").sizes == sizes


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_fsdp_has_what_megatron_asks_of_it_and_splits_what_they_need(zero):
    """`validate_args` of its `training/arguments.py`, commit d98e8a64."""
    sizes = DecoderSizes(4, 64, 4, 4, 128, 64, 512)
    plan = LaunchPlan(dp=2, tp=2, microbatch_size=1, batch=2, zero=zero, sizes=sizes)
    text = write_megatron(plan, [], 8)
    fsdp = "--use-megatron-fsdp" in text
    assert fsdp is (zero > 1)
    assert ("--ckpt-format fsdp_dtensor" in text) is fsdp
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in text) is not fsdp


@pytest.mark.parametrize(
    ("flags", "graphs", "note"),
    [
        ("", None, None),
        ("--enable-cuda-graph", "layers", None),
        ("--external-cuda-graph --cuda-graph-scope attn mlp", "layers", None),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "iteration", None),
        ("--cuda-graph-impl full_iteration", "iteration", None),
        ("--cuda-graph-impl none", None, None),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", None,
         "CUDA graphs of attn, moe_router alone: priced without"),
    ],
)  # fmt: skip
def test_captured_launches_are_read(flags, graphs, note):
    """`docs/user-guide/features/cuda_graph.md` of d98e8a64, with its migration of older flags."""
    plan = read_megatron(
        UNEVEN.replace("  --bf16: true", f"  --bf16: true\n  {flags}"), "file"
    )
    assert plan.cuda_graphs == graphs
    assert [told for told in plan.notes if "CUDA" in told] == (
        [] if note is None else [note]
    )


def test_captured_launches_are_written():
    plan = LaunchPlan(
        dp=1, microbatch_size=1, batch=8, sizes=SIZES, cuda_graphs="iteration"
    )
    text = write_megatron(plan, [])
    assert "--cuda-graph-impl full_iteration" in text
    assert "--no-check-for-nan-in-loss-and-grad" in text
    assert read_megatron(text, "file").cuda_graphs == "iteration"


def test_instances_of_the_optimizer_are_groups_of_zero():
    plan = LaunchPlan(dp=16, microbatch_size=1, batch=16, sizes=SIZES, zero=1, group=8)
    text = write_megatron(plan, [])
    assert "--num-distributed-optimizer-instances 2" in text
    assert read_megatron(text, "file").group == 8


def test_learned_positions_of_gated_layers_are_written_and_read():
    sizes = DecoderSizes(
        layers=2, hidden=64, heads=4, kv_heads=4, feed_forward=128, length=32,
        vocabulary=128, gated=True, positions=48,
    )  # fmt: skip
    plan = LaunchPlan(dp=1, microbatch_size=1, batch=2, sizes=sizes)
    text, losses = write_launch_plan(plan, "megatron-lm", [])
    assert "--position-embedding-type learned_absolute" in text
    assert "--max-position-embeddings 48" in text
    assert not any("positions" in loss.summary for loss in losses)
    read = read_megatron(text, "file").sizes
    assert read is not None
    assert read.learned == 48
    assert read.parameters == sizes.parameters


def test_rotary_positions_of_layers_without_a_gate_are_read():
    flags = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 32"
    flags += " --num-attention-heads 4 --micro-batch-size 1 --global-batch-size 2"
    learned = read_megatron(flags, "file").sizes
    rotary = read_megatron(f"{flags} --position-embedding-type rope", "file").sizes
    assert learned.parameters - rotary.parameters == 32 * 64


def test_single_modules_are_recomputed_as_the_flags_say():
    text = """
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --bf16: true
  --recompute-granularity: selective
  --cuda-graph-impl: transformer_engine
  --cuda-graph-scope: attn mlp
"""
    plan = read_megatron(text, "model_config.yaml")
    assert plan.recompute == "selective"
    plan = read_megatron(f"{text}  --recompute-modules: mlp layernorm core_attn\n", "")
    assert plan.recompute == "modules:core_attn+layernorm+mlp"
    # What is recomputed is not what is captured.
    assert plan.cuda_graphs == "layers"
    assert plan.notes == read_megatron(text, "").notes
    unknown = read_megatron(f"{text}  --recompute-modules: mlp new_part\n", "")
    assert unknown.recompute == "modules:mlp"
    assert any(
        "recompute-modules new_part: not known" in line for line in unknown.notes
    )


def test_single_modules_are_written_and_read_again():
    plan = LaunchPlan(
        dp=2,
        tp=2,
        microbatch_size=1,
        batch=8,
        zero=1,
        recompute="modules:layernorm+mlp",
        precision="bf16-master",
        gradients="fp32",
        sp=True,
        sizes=SIZES,
    )
    for name, keys in (
        ("megatron-lm", "--recompute-modules layernorm mlp"),
        ("megatron-bridge", "model.recompute_modules=[layernorm,mlp]"),
    ):
        text, losses = write_launch_plan(plan, name, [])
        assert keys in text
        assert not losses
    _, steps = nearest_plan(plan, get_launcher("torchtitan"))
    assert "recomputes no single modules; selective is written" in steps[0][0]
