"""Captured models by their blocks, beside their sizes and beside their captured kernels.

    python -m benchmarks.recognition [MODEL ...]

Prints a Markdown table, a row a model: the seconds of a step and the bytes of its fullest device
under the first plan, and the largest differences over all `PLANS` from what the model's sizes say
(of seconds without the optimizer's, which take 20 ms of any step),
priced by captured kernels (as every model was before blocks were recognised) and by blocks. A model
without sizes is compared with its own blocks. `docs/plan.md` has the table. Models are of real
widths and few layers, and nothing is allocated.
"""

from __future__ import annotations

import argparse

from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.plan import Plan
from gnnplace.plans.segments.block_costs import BlockCosts
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain, capture_layer_chain
from gnnplace.plans.segments.sized import with_blocks
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.problem.constraints.constraints import cluster_with_headroom

CLUSTER, BATCH, PRECISION = "nvswitch-h100-8", 16, "bf16-mixed"
DECODER = (
    "num_hidden_layers=4&hidden_size=2048&num_attention_heads=16&num_key_value_heads=8"
    "&intermediate_size=5632&vocab_size=32000&length=2048"
)
LATENT = (
    "num_hidden_layers=4&hidden_size=2048&num_attention_heads=16&num_key_value_heads=16"
    "&intermediate_size=5632&vocab_size=32000&length=2048&first_k_dense_replace=1"
    "&n_routed_experts=16&n_group=4&topk_group=2&num_experts_per_tok=4"
    "&moe_intermediate_size=1024"
)
ENCODER = (
    "num_hidden_layers=4&hidden_size=1024&num_attention_heads=16&intermediate_size=4096"
)
MODELS = {
    "Llama": f"hf:llama?{DECODER}",
    "Qwen3": f"hf:qwen3?{DECODER}&head_dim=128",
    "GPT-2": "hf:gpt2?n_layer=4&n_embd=2048&n_head=16&vocab_size=32000&length=1024",
    "Mixtral": f"hf:mixtral?{DECODER}&num_local_experts=8",
    "Qwen3-MoE": (
        f"hf:qwen3_moe?{DECODER}&num_experts=16&num_experts_per_tok=4"
        "&moe_intermediate_size=1024"
    ),
    "DeepSeek-V3": f"hf:deepseek_v3?{LATENT}",
    "gpt-oss": f"hf:gpt_oss?{DECODER}&num_local_experts=16",
    "BERT": f"hf:bert?{ENCODER}&length=512",
    "ViT": f"hf:vit?{ENCODER}",
    "T5": "hf:t5?num_layers=2&d_model=1024&d_ff=4096&num_heads=16&d_kv=64&length=512",
    "Mamba": "hf:mamba?num_hidden_layers=4&hidden_size=1024&length=128",
}
PLANS = (
    "dp=8,microbatch_size=1",
    "dp=8,zero=3,microbatch_size=2",
    "dp=8,zero=1,microbatch_size=2,recompute=full",
    "dp=2,pp=4,microbatch_size=1,layers=1+1+1+1",
    "dp=2,tp=4,microbatch_size=1",
)
HEADER = (
    "| model | by sizes: s, GB | captured: seconds, bytes | by blocks: seconds, bytes | "
    "with tp | recognised | not recognised |"
)


def peak(plan: Plan) -> float:
    """Return the bytes of a plan's fullest device, without what a preset leaves free of it."""
    return max(entry.all - entry.slack for entry in plan.file.memory.values())


def passes(plan: Plan) -> float:
    """Return the seconds of a step without the optimizer's, which no block has a part in."""
    return plan.step_time - plan.file.parts["update"]


def difference(plans: list[Plan], references: list[Plan]) -> str:
    """Format the largest differences of seconds and bytes of plans."""
    seconds, memory = (
        max(
            (amount(plan) / amount(reference) - 1.0 for plan, reference in pairs),
            key=abs,
        )
        for pairs in [list(zip(plans, references, strict=True))]
        for amount in (passes, peak)
    )
    return f"{seconds:+.1%}, {memory:+.1%}"


def row(name: str) -> str:
    """Return the row of a model."""
    cluster = cluster_with_headroom(make_preset(CLUSTER), "auto")
    job = TrainingJob(
        MODELS[name], batch=BATCH, precision=PRECISION, accept_other_loss=True
    )
    captured = capture_layer_chain(job, cluster)
    answered = capture_chain(job, cluster)
    by_blocks = with_blocks(captured, cluster)
    has_sizes = not isinstance(answered.source, BlockCosts)
    # T5's layers are those of two stacks, which no cut parts one by one.
    words = [w for w in PLANS if "pp" not in w or name != "T5"]
    tensor_parallel = [w for w in words if "tp" in w]
    words = [w for w in words if w not in tensor_parallel]

    def plans(chain: Chain, specs: list[str]) -> list[Plan]:
        return [price_given_plan(chain, cluster, spec) for spec in specs]

    references = plans(answered, words)
    first = references[0]
    recognition = by_blocks.recognition
    assert recognition is not None
    return " | ".join(
        (
            f"| {name}",
            f"{first.step_time:.3f}, {peak(first) / 1e9:.2f}" if has_sizes else "none",
            difference(plans(captured, words), references),
            difference(plans(by_blocks, words), references) if has_sizes else "same",
            difference(
                plans(by_blocks, tensor_parallel), plans(answered, tensor_parallel)
            )
            if has_sizes
            else "same",
            f"{recognition.share:.1%}",
            f"{', '.join(f'`{m}`' for m in recognition.unrecognised) or 'nothing'} |",
        )
    )


def main() -> None:
    """Print the table of the named models, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the table")
    names = parser.parse_args().models or list(MODELS)
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for name in names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
