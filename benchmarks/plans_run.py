"""Joint plans run for real beside one device: every model under stages, shards, replicas and all.

A row is a plan on gloo processes of this machine. Loss and gradients of a step are compared with
the model as it is, which accumulates over the same shares; then both train 20 steps with AdamW. A
row fails where gradients are off by more than 1e-6 in double precision, or losses by more than
1e-4. Times are measured with more processes than cores where there are more, and say little then.

    python benchmarks/plans_run.py [--models bert,unet] [-o benchmarks/results/plans-run.md]
"""

from __future__ import annotations

import argparse
import math
import os
from importlib.metadata import version
from pathlib import Path

import gnnplace
from gnnplace.cli.console import say
from gnnplace.errors import GnnplaceError

SMALL = "layers=2&width=64&length=32&vocabulary=100&dropout=0.1"
T5 = (
    "hf:t5?num_layers=2&num_decoder_layers=2&d_model=64&d_ff=128&num_heads=4&d_kv=16&vocab_size=128"
    "&length=16"
)
LLAMA = (
    "hf:llama?num_hidden_layers=2&hidden_size=64&intermediate_size=128&num_attention_heads=4"
    "&num_key_value_heads=2&vocab_size=128&length=16"
)
MIXTRAL = (
    "hf:mixtral?num_hidden_layers=2&hidden_size=64&intermediate_size=96&num_attention_heads=4"
    "&num_key_value_heads=2&num_local_experts=4&vocab_size=128&length=16"
)
DEEPSEEK = (
    "hf:deepseek_v3?num_hidden_layers=2&hidden_size=64&intermediate_size=96&num_attention_heads=4"
    "&num_key_value_heads=4&moe_intermediate_size=32&n_routed_experts=8&first_k_dense_replace=1"
    "&q_lora_rank=32&kv_lora_rank=16&qk_rope_head_dim=8&qk_nope_head_dim=16&v_head_dim=16"
    "&num_experts_per_tok=2&n_group=2&topk_group=1&vocab_size=128&length=16"
)
MODELS = {  # and examples of a step
    "gpt2": (f"gpt2?{SMALL}", 8),
    "bert": (f"bert?{SMALL}", 8),
    "vit": ("vit?layers=2&width=64&size=32&dropout=0.1", 8),
    "t5": (T5, 8),
    "llama": (LLAMA, 8),
    "mixtral": (MIXTRAL, 8),
    "deepseek": (DEEPSEEK, 8),
    "dit": ("benchmarks/dit.py:dit?layers=2&width=64&heads=4&size=16", 8),
    "unet": ("unet?size=32&width=8&depth=2", 8),
    "moe": ("moe?batch=16&width=32&hidden=64", 16),
    "resnet": ("small_resnet?size=64&batch=16", 16),
}
SHARDS = {  # plans of models whose tokens are cut
    "llama": (
        "cp=2,zero=1",
        "tp=2,cp=2,regather=on",
        "pp=2,tp=2,schedule=zero-bubble,regather=on",
        "pp=2,tp=2,schedule=1f1b,recompute=selective,regather=on",
        "dp=2,tp=2,cp=2,zero=1",
        "pp=2,tp=2,cp=2,schedule=1f1b,recompute=full",
        "pp=2,cp=2,schedule=1f1b",
        "pp=2,dp=2,cp=2,zero=3,recompute=full",
    ),
    "t5": ("pp=2,cp=2,schedule=1f1b", "pp=2,tp=2,cp=2,schedule=1f1b"),
    "mixtral": (
        "cp=2,ep=2,zero=2",
        "dp=2,ep=2,zero=1",
        "dp=4,tp=2,ep=2,zero=3",
        "pp=2,dp=2,tp=2,ep=2,zero=2,schedule=zero-bubble,recompute=full",
        "pp=2,dp=2,cp=2,ep=2,zero=1,schedule=zero-bubble,recompute=full",
    ),
    "deepseek": (
        "pp=2,cp=2,ep=2,schedule=1f1b",
        "tp=2,cp=2,ep=2",
        "dp=2,tp=2,ep=2,zero=1",
    ),
}
ONE = {"resnet": 4}  # examples of the smallest micro-batch: batch norm wants some
PLANS = (
    "pp=4,schedule=zero-bubble",
    "pp=2,schedule=v,recompute=full",
    "pp=2,tp=2,schedule=1f1b",
    "pp=2,dp=2,zero=2,schedule=zero-bubble",
    "pp=2,dp=2,tp=2,zero=3,recompute=full,schedule=zero-bubble",
)
HEAD = (
    "| model | plan | processes | M | bitwise | own precision | double | 20 losses | measured ms | "
    "predicted ms | passed |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


def words_of(model: str, plan: str) -> str:
    """A plan in words, with the model's micro-batch."""
    return f"{plan},microbatch_size={ONE.get(model, 2 if 'dp=2' in plan else 1)}"


def run(model: str, plan: str, train: int = 20) -> tuple[str, bool]:
    """A row of the table, and whether it passed."""
    spec, batch = MODELS[model]
    words = words_of(model, plan)
    degrees = dict(word.split("=") for word in plan.split(","))
    count = math.prod(int(degrees.get(name, 1)) for name in ("dp", "tp", "cp", "pp"))
    made = gnnplace.plan(
        spec, "cpu:8" if count > 4 else "cpu:4", batch=batch, given=words
    )[0]
    found = gnnplace.run_plan(made, spec, train=train, steps=5)
    assert found is not None
    file = made.file
    count = len({d for stage in file.stages for row in stage.rows for d in row})
    exact = max((d.relative for d in found.verification.different), default=0.0)
    row = (
        model, words, count, made.microbatches, "yes" if found.single == 0.0 else "no",
        f"{found.single:.1e}", f"{exact:.1e}" if found.single else "", f"{found.apart:.1e}",
        f"{1e3 * (found.measured or 0.0):.0f}", f"{1e3 * (file.step_time or 0.0):.1f}",
        "yes" if found.passed else "NO",
    )  # fmt: skip
    return "| " + " | ".join(map(str, row)) + " |", found.passed


TWO = (
    ("gpt2", 8, "pp=2,microbatch_size=2"),
    ("gpt2", 8, "dp=2,microbatch_size=4"),
    ("bert", 8, "pp=2,microbatch_size=2,schedule=zero-bubble"),
    ("vit", 8, "pp=2,microbatch_size=2"),
    ("unet", 8, "pp=2,microbatch_size=2"),
    ("unet", 8, "dp=2,microbatch_size=4,zero=1"),
    ("resnet50", 8, "pp=2,microbatch_size=4,recompute=full"),
    ("moe", 256, "pp=2,microbatch_size=64"),
)
TWO_HEAD = (
    "| model | plan | predicted ms | measured ms | predicted / measured | inside the interval |",
    "|---|---|---|---|---|---|",
)


def run_two(spec: str, batch: int, words: str) -> str:
    """A row of the second table: two workers with a core each, nothing else compared."""
    plan = gnnplace.plan(spec, "cpu:2", batch=batch, given=words)[0]
    found = gnnplace.run_plan(plan, spec, train=0, steps=20)
    assert found is not None
    assert found.measured is not None
    ratio = plan.step_time / found.measured
    times = f"{1e3 * plan.step_time:.0f} | {1e3 * found.measured:.0f}"
    return f"| {spec} | {words} | {times} | {ratio:.2f} | {'yes' if found.covered else 'no'} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("-o", "--output", default="benchmarks/results/plans-run.md")
    parser.add_argument(
        "--two", action="store_true", help="Predict and measure cpu:2, too."
    )
    args = parser.parse_args()
    rows, failed = [], 0
    for model in filter(None, args.models.split(",")):
        for plan in (*PLANS, *SHARDS.get(model, ())):
            try:
                row, passed = run(model, plan)
            except GnnplaceError as error:
                row, passed = f"| {model} | {plan} | {error} |", False
            say(row)
            rows.append(row)
            failed += not passed
    two = []
    for spec, batch, words in TWO if args.two else ():
        two.append(run_two(spec, batch, words))
        say(two[-1])
    told = "All passed." if not failed else f"{failed} of {len(rows)} did NOT pass."
    lines = [
        TITLE,
        told,
        "",
        *HEAD,
        *rows,
        "",
        *([TWO_TITLE, *TWO_HEAD, *two, ""] if two else []),
    ]
    Path(args.output).write_text("\n".join(lines), encoding="utf-8")
    return 1 if failed else 0


TITLE = f"""# Joint plans run for real, beside one device

`python benchmarks/plans_run.py`, torch {version("torch")} on CPU with gloo, {os.cpu_count()} cores.
Columns: the largest relative difference of a gradient or the loss in the model's own precision and,
where it is not bitwise equal, in double precision; of the losses of 20 steps of AdamW; wall time of
a step (measured, with more processes than cores), and as predicted by the roofline of one core.
"""

TWO_TITLE = """## Predicted and measured on two cores

Two workers with a core each, `cpu:2`; the median of 20 measured steps beside the prediction of a
roofline with assumed rates (50 GFLOP/s and 10 GB/s a core), fitted to nothing here.
"""

if __name__ == "__main__":
    raise SystemExit(main())
