"""Megatron's scripts: the command that would start counts; what is not known is asked for."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError
from gnnplace.launch.megatron_flags import EFFECTS, HARMLESS
from gnnplace.launch.megatron_plan import is_counted
from gnnplace.launch.megatron_script import read_megatron

NET = "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --vocab-size 512"
RUN = "--micro-batch-size 2 --global-batch-size 32"
START = f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {NET} {RUN} --bf16"


def test_what_is_made_and_never_used_does_not_count():
    text = f'LEAN="--recompute-granularity full --recompute-method uniform"\n{START}\n'
    plan = read_megatron(text, "run.sh")
    assert (plan.recompute, plan.dp, plan.lines["microbatch_size"]) == ("none", 16, 2)


def test_values_of_the_environment_are_asked_for_all_at_once_and_taken():
    text = (
        "WIDTH=$2\nif [ $WIDTH = wide ]; then T=4; else T=2; fi\n"
        f"{START} --tensor-model-parallel-size $T --context-parallel-size ${{CP}}\n"
    )
    with pytest.raises(FormatError) as caught:
        read_megatron(text, "run.sh")
    assert str(caught.value) == (
        "run.sh: --tensor-model-parallel-size needs WIDTH, --context-parallel-size needs CP; only "
        "the run's environment has them: give --set WIDTH=VALUE --set CP=VALUE"
    )
    plan = read_megatron(text, "run.sh", {"WIDTH": "wide", "CP": "2"})
    assert (plan.tp, plan.cp, plan.dp) == (4, 2, 2)
    assert read_megatron(text, "run.sh", {"2": "thin", "CP": "1"}).tp == 2


def test_flags_that_an_unknown_condition_adds_are_asked_for_and_harmless_ones_are_not():
    extra = 'if [ "$KIND" = a ]; then E="--log-throughput"; fi\n'
    assert read_megatron(f"{extra}{START} $E\n", "run.sh").needs == ()
    with pytest.raises(FormatError, match="which flags are there needs KIND"):
        read_megatron(
            f"{extra.replace('--log-throughput', '--fp8-format hybrid')}{START} $E\n",
            "x",
        )
    plan = read_megatron(f"{START} $EXTRA\n", "run.sh")
    assert plan.needs == ("EXTRA",)
    assert "${EXTRA}: what only the environment has; taken as empty" in plan.notes


def test_several_runs_that_differ_are_refused_and_equal_ones_are_one():
    assert read_megatron(f"{START}\necho {START}\n{START}\n", "run.sh").batch == 32
    with pytest.raises(FormatError, match=r"starts 2 runs that differ \(lines 1, 2\)"):
        read_megatron(f"{START}\n{START} --tensor-model-parallel-size 2\n", "run.sh")
    with pytest.raises(
        FormatError, match="which command starts the training needs BIG"
    ):
        read_megatron(
            f'if [ "$BIG" = 1 ]; then {START}; else {START} --swiglu; fi\n', "run.sh"
        )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("source none.sh\n", "it sources none.sh, which is not beside it"),
        ("torchrun pretrain_t5.py --num-layers 2\n", "another kind .t5."),
        ("echo hello\n", "no command of it starts training"),
        (START.replace("pretrain_gpt", "run_text_generation_server"), "server.py runs no training"),
        (f"{START} --decoder-num-layers 8\n", "an encoder and a decoder .t5."),
        (f"{START} --decoder-seq-length 64\n", "an encoder and a decoder .t5."),
        (START.replace("nnodes 2", "nnodes 1") + " --tensor-model-parallel-size 16\n",
         "say the servers of the run by the variable of --nnodes"),
    ],
)  # fmt: skip
def test_what_starts_no_run_is_one_line(text, told):
    with pytest.raises(FormatError, match=told) as caught:
        read_megatron(text, "run.sh")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "recompute", "gradients"),
    [
        ("--fp16 --checkpoint-activations", "full", "same"),
        ("--fp16 --checkpoint-activations --checkpoint-num-layers 2", "uniform:2", "same"),
        ("--fp16 --activations-checkpoint-method block --activations-checkpoint-num-layers 3",
         "block:3", "same"),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "none", "fp32"),
        ("--bf16 --grad-reduce-in-bf16 --recompute-activations", "selective", "same"),
        ("--bf16", "none", "fp32"),
    ],
)  # fmt: skip
def test_flags_of_other_years_mean_what_they_meant(flags, recompute, gradients):
    """`megatron/arguments.py` of v2.5 and v3.0: fp32 sums are the default of bf16 alone."""
    plan = read_megatron(START.replace("--bf16", flags), "run.sh")
    assert (plan.recompute, plan.gradients) == (recompute, gradients)


def test_deepspeeds_json_counts_more_than_the_flags():
    text = (
        'MICRO=4\nconf="ds.$SLURM_JOBID.json"\ncat <<EOT > $conf\n'
        '{"train_micro_batch_size_per_gpu": $MICRO, "train_batch_size": 64, "bf16": {"enabled": '
        'true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}\nEOT\n'
        f"{START.replace('--bf16', '')} --deepspeed --deepspeed_config $conf --zero-stage 1 "
        "--ds-sequence-parallel-size 2 --num-key-value-heads 2\n"
    )
    plan = read_megatron(text, "run.sh")
    assert (plan.microbatch_size, plan.batch, plan.zero, plan.cp) == (4, 64, 3, 2)
    assert (plan.precision, plan.gradients) == ("bf16-master", "same")
    assert plan.sizes is not None
    assert plan.sizes.kv_heads == 2
    assert any(
        "zero: 3 of ds.<SLURM_JOBID>.json counts, not 1" in note for note in plan.notes
    )
    assert (plan.offload, plan.not_priced) == ("optimizer", ())


def test_layers_by_type_are_filled_as_deepspeed_fills_them():
    """`PipelineModule` with `type:transformer|embedding`: embedding and tied head count."""
    flags = "--deepspeed --zero-stage 0 --pipeline-model-parallel-size 2"
    by_type = f"{flags} --pp-partition-method 'type:transformer|embedding'"
    assert read_megatron(f"{START} {by_type}", "run.sh").layers is None  # 4 + 4
    uneven = START.replace("--num-layers 8", "--num-layers 9")
    assert read_megatron(f"{uneven} {by_type}", "run.sh").layers == (5, 4)
    assert read_megatron(f"{uneven} {flags}", "run.sh").layers == (5, 4)


def test_what_no_price_counts_is_named_with_its_line():
    flags = "A=(\n  --fp8-format hybrid\n  --optimizer dist_muon\n  --attention-backend flash\n)\n"
    text = f"{flags}{START} ${{A[@]}}"
    plan = read_megatron(text, "run.sh")
    assert [(entry.key, entry.line) for entry in plan.not_priced] == [
        ("--fp8-format", 2), ("--optimizer", 3),
    ]  # fmt: skip
    assert str(plan.not_priced[0]).startswith(
        "line 2: --fp8-format: matrix products in fp8"
    )


def test_only_the_command_that_trains_counts():
    """Scripts that convert a checkpoint first, or evaluate the model later, are no runs."""
    shard = f"python tools/checkpoint/convert.py {NET} --tensor-model-parallel-size 4\n"
    evaluate = START.replace("pretrain_gpt", "evaluate_gpt")
    plan = read_megatron(f"{shard}{START}\n{evaluate} --swiglu\n", "run.sh")
    assert (plan.tp, plan.dp) == (1, 16)


def test_a_model_of_images_and_text_has_its_decoders_length():
    flags = "--img-h 448 --img-w 448 --patch-dim 14 --decoder-seq-length 1024"
    plan = read_megatron(f"{START} {flags}\n", "run.sh")
    assert plan.sizes is not None
    assert plan.sizes.length == 1024
    assert any("image encoder is not counted" in line for line in plan.remarks)


def test_no_flag_is_in_two_tables():
    assert not EFFECTS.keys() & HARMLESS
    assert not {name for name in HARMLESS if is_counted(name)} - {
        "use-cpu-initialization", "make-vocab-size-divisible-by", "qk-layernorm", "deepspeed",
    }  # fmt: skip
