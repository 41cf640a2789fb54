"""`explain FILE --words`: what a launch file says, word by word, with lines and defaults.

Nothing is priced and no model or cluster is needed. The keys are those of the contract: "launcher",
"words", "sizes", "not_priced", "needs", "notes".
"""

from __future__ import annotations

from gnnplace.launch.keys import FileValue
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.plans import DecoderSizes, format_layers

SHOWN_WORDS = (
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "etp",
    "sp",
    "layers",
    "microbatch_size",
    "batch",
    "accumulation",
    "zero",
    "group",
    "gradients",
    "recompute",
    "schedule",
    "overlap",
    "compile",
    "cuda_graphs",
    "precision",
    "optimizer",
    "lora",
)
"""Words of a plan in the order in which they are shown. One that is not known is left out."""


def word_values(plan: LaunchPlan) -> dict[str, FileValue]:
    """Return the value of every word that is known, as `--given` spells it."""
    values = {word: getattr(plan, word) for word in SHOWN_WORDS}
    values["schedule"] = plan.full_schedule
    values["layers"] = None if plan.layers is None else format_layers(plan.layers)
    values["overlap"] = plan.spec.overlap
    return {word: value for word, value in values.items() if value is not None}


def missing_values(plan: LaunchPlan) -> list[str]:
    """Return the names of what a price needs and the file does not have."""
    names = list(plan.needs)
    if plan.batch is None and plan.microbatch_size is None:
        names += ["batch"]
    if plan.microbatch_size is None and (
        plan.batch is None or plan.accumulation is None
    ):
        names += ["microbatch_size"]
    if plan.precision is None:
        names += ["precision"]
    if plan.sizes is None:
        names += ["MODEL"]
    return list(dict.fromkeys(names))


def size_values(sizes: DecoderSizes) -> dict[str, FileValue]:
    """Return the sizes of a model under the names that its `config.json` would have."""
    experts = sizes.experts
    values: dict[str, FileValue] = {
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "intermediate_size": sizes.feed_forward,
        "vocab_size": sizes.vocabulary,
        "length": sizes.length,
        "tie_word_embeddings": sizes.tied,
        "gated": sizes.gated,
    }
    if experts is not None:
        values |= {
            "num_experts": experts.count,
            "num_experts_per_tok": experts.active,
            "moe_intermediate_size": experts.width,
            "shared_expert_intermediate_size": experts.shared,
            "first_k_dense_replace": experts.dense,
        }
    return values


def words_data(plan: LaunchPlan, launcher: str) -> dict[str, FileValue]:
    """Return what `gnnplace explain FILE --words --json` prints."""
    lines = plan.lines
    return {
        "launcher": launcher,
        "words": {
            word: {
                "value": value,
                "line": lines.get(word),
                "default": word not in lines,
            }
            for word, value in word_values(plan).items()
        },
        "sizes": None if plan.sizes is None else size_values(plan.sizes),
        "not_priced": [
            {"key": entry.key, "line": entry.line, "effect": entry.effect}
            for entry in plan.not_priced
        ],
        "needs": missing_values(plan),
        "notes": list(plan.notes),
    }


def words_lines(plan: LaunchPlan, launcher: str, path: str) -> list[str]:
    """Format what `gnnplace explain FILE --words` prints."""
    data = words_data(plan, launcher)
    text = [f"{path}: a file of {launcher}"]
    for word, entry in data["words"].items():
        if entry["default"]:
            place = "default"
        else:
            place = "said by the file"
        if entry["line"] is not None:
            place = f"line {entry['line']}"
        text.append(f"  {word} = {_format_value(entry['value'])}  ({place})")
    if data["sizes"] is not None:
        pairs = ", ".join(
            f"{key} {_format_value(value)}" for key, value in data["sizes"].items()
        )
        text.append(f"  sizes of the model: {pairs}")
    text += [f"  not priced: {entry}" for entry in plan.not_priced]
    text += [f"  note: {note}" for note in plan.notes]
    if data["needs"]:
        text.append(f"  a price needs: {', '.join(data['needs'])}")
    return text


def _format_value(value: FileValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
