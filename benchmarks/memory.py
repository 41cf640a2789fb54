"""Predicted memory of a step beside what torch's allocator hands out in it, model by model.

Each model is captured, placed on two CPU workers by ``contiguous`` (and on one by ``single``) and
run; a row is the device that needs most. A row fails if less than 95 % of what was used is
predicted, or more than 110 % and 3 MB.

    python benchmarks/memory.py [--models bert,unet] [--optimizers adamw] [--microbatches 1,4]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gnnplace
from gnnplace.cli.console import say
from gnnplace.costs.profiling import cache
from gnnplace.errors import GnnplaceError

MODELS = (
    "bert",
    "gpt2",
    "vit",
    "resnet50?size=64&batch=8",
    "inception",
    "densenet?batch=4",
    "unet?batch=4",
    "seq2seq",
    "moe",
    "recommender",
    "two_tower",
    "mlp",
    "small_resnet",
    "tagger",
    "rnn_lm",
    "highway",
    "searched_cnn",
    "searched_rnn",
    "speech",
    "tree_lstm",
    "wired",
    "hf:gpt2?n_layer=2&n_embd=128&n_head=4&vocab_size=512&length=64&batch=4",
    "hf:llama?num_hidden_layers=2&hidden_size=128&intermediate_size=256&num_attention_heads=4"
    "&num_key_value_heads=2&vocab_size=512&length=64&batch=4",
    "hf:bloom?n_layer=2&n_head=4&hidden_size=128&vocab_size=512&length=64&batch=4",
    "hf:distilbert?n_layers=2&dim=128&n_heads=4&hidden_dim=256&vocab_size=512&length=64&batch=4",
    "hf:opt?num_hidden_layers=2&hidden_size=128&ffn_dim=256&num_attention_heads=4"
    "&word_embed_proj_dim=128&vocab_size=512&length=64&batch=4",
    "benchmarks.memory_models:scatter_add",
    "benchmarks.memory_models:scatter_mean",
    "benchmarks.memory_models:index_add",
    "benchmarks.memory_models:sage",
    "benchmarks.memory_models:graph_conv",
    "benchmarks.memory_models:gan",
    "benchmarks.memory_models:dcgan",
    "benchmarks.memory_models:autoencoder",
    "benchmarks.memory_models:temporal",
    "benchmarks.memory_models:volumes",
    "benchmarks.memory_models:depthwise",
    "benchmarks.memory_models:contrastive",
    "benchmarks.memory_models:encoder",
    "benchmarks.memory_models:factorized",
    "benchmarks.checkpointed:bert",
    "benchmarks.checkpointed:gpt2",
    "benchmarks.checkpointed:vit",
)
TOO_SMALL, TOO_LARGE, CONSTANT = 0.05, 0.1, 3e6
HEAD = (
    "| model | optimizer | M | workers | predicted MB | measured MB | of it state | off | within |",
    "|---|---|---|---|---|---|---|---|---|",
)


def rows(model: str, optimizer: str, microbatches: int) -> list[str]:
    """Return a row for one worker and one for two."""
    options = gnnplace.CaptureOptions(microbatches=microbatches, optimizer=optimizer)
    program = gnnplace.capture(model, options=options)
    told = []
    for workers, placer in ((1, "single"), (2, "contiguous")):
        problem = gnnplace.profile(model, f"cpu:{workers}", options=options)
        placed = gnnplace.place(problem, placer=placer, budget=0)
        done = gnnplace.execute(
            program,
            problem,
            placed.placement,
            options=options,
            run=gnnplace.ExecutionOptions(steps=1),
        )
        names = [device.name for device in problem.cluster.devices]
        predicted = dict(
            zip(names, placed.simulation.peak_memory.tolist(), strict=True)
        )
        name = max(predicted, key=lambda each: predicted[each])
        found, expected = done.execution.memory[name], predicted[name]
        off = found.peak - expected
        within = -TOO_LARGE * found.peak - CONSTANT <= off <= TOO_SMALL * found.peak
        told.append(
            f"| {model} | {optimizer} | {microbatches} | {workers} | {expected / 1e6:.2f} | "
            f"{found.peak / 1e6:.2f} | {found.state / 1e6:.2f} | {off / found.peak:+.1%} | "
            f"{'yes' if within else 'no'} |"
        )
    return told


def main() -> None:
    """Print a Markdown table, and write it to a file if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--optimizers", default="sgd,adamw")
    parser.add_argument("--microbatches", default="1")
    parser.add_argument("-o", "--output", type=Path, default=None)
    arguments = parser.parse_args()
    cache.MOST_LOAD = cache.MOST_NOISE = float("inf")  # seconds do not matter here
    lines = list(HEAD)
    for model in arguments.models.split(","):
        for optimizer in arguments.optimizers.split(","):
            for microbatches in map(int, arguments.microbatches.split(",")):
                say(f"{model}, {optimizer}, {microbatches} micro-batches")
                try:
                    lines += rows(model, optimizer, microbatches)
                except GnnplaceError as error:  # a failure is a row
                    lines.append(
                        f"| {model} | {optimizer} | {microbatches} | - | {error} |||||"
                    )
                if arguments.output:
                    arguments.output.write_text(
                        "\n".join(lines) + "\n", encoding="utf-8"
                    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
