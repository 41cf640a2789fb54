"""nanotron: the YAML of `run_train.py --config-file`.

Written for and read by nanotron 2411b022 (`config/config.py`, `config/parallelism_config.py`,
`models/base.py`). It trains Llama's layers. Stages cannot be told: it cuts them by the cost of
blocks (`plans.decoders.stages`, "cost"), which is done here too, so that the words name the layers
that a run has. A stage of ZeRO other than 0 acts as 1. `pp_engine` is afab where nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from gnnplace.errors import InfeasibleError
from gnnplace.files import parse_yaml
from gnnplace.launch.keys import Keys, put_values, yaml_lines
from gnnplace.launch.launch_plan import (
    FULL,
    NONE,
    PRICED_OPTIMIZERS,
    LaunchPlan,
    NotPriced,
    check_plan_words,
    header,
)
from gnnplace.launch.layer_details import BESIDE_LLAMA, LayerDetails
from gnnplace.plans import DecoderSizes, ExpertLayers, cut_layers

TOP = (
    "checkpoints",
    "data_stages",
    "general",
    "lighteval",
    "logging",
    "model",
    "optimizer",
    "parallelism",
    "profiler",
    "tokenizer",
    "tokens",
    "s3_upload",
    "metrics_logging",
)
TYPES = ("llama", "mistral", "qwen2", "phi3")
"""Types of models of the catalogue whose layers nanotron has."""
PARALLEL = (
    "dp",
    "pp",
    "tp",
    "pp_engine",
    "tp_mode",
    "tp_linear_async_communication",
    "recompute_layer",
    "tp_recompute_allgather",
    "expert_parallel_size",
    "context_parallel_size",
)


WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": ("parallelism.dp",),
    "tp": ("parallelism.tp",),
    "pp": ("parallelism.pp",),
    "cp": ("parallelism.context_parallel_size",),
    "ep": ("parallelism.expert_parallel_size",),
    "sp": ("parallelism.tp_mode",),
    "microbatch_size": ("tokens.micro_batch_size",),
    "batch": ("tokens.batch_accumulation_per_replica",),
    "zero": ("optimizer.zero_stage",),
    "recompute": ("parallelism.recompute_layer",),
    "schedule": ("parallelism.pp_engine",),
    "precision": ("model.dtype",),
    "gradients": ("optimizer.accumulate_grad_in_fp32",),
    "optimizer": ("optimizer.optimizer_factory.name",),
}


def cut_by_cost(sizes: DecoderSizes, pp: int) -> tuple[int, ...]:
    """Return the number of layers of every stage, as nanotron cuts them."""
    return cut_layers(sizes, pp, "cost")


def nearest_nanotron(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield what nanotron cannot express, one thing at a time.

    Yields:
        A line for the user, and the nearest plan so far that nanotron can express.
    """
    for given_up, run in plan.as_it_runs("nanotron"):
        plan = run
        yield given_up, plan
    for line, run in plan.without_unsayable(
        "nanotron", overlap=("tp",), optimizers=("sgd", "adam", "adamw")
    ):
        plan = run
        yield line, plan
    if plan.schedule not in ("1f1b", "gpipe") or plan.chunks > 1:
        given_up = f"schedule {plan.full_schedule}: nanotron has 1f1b and afab; 1f1b is written"
        plan = plan.with_one_stage_a_rank()
        yield given_up, plan
    if plan.sizes is not None and plan.pp > 1:
        by_cost = cut_by_cost(plan.sizes, plan.pp)
        was = plan.layers or (plan.sizes.layers // plan.pp,) * plan.pp
        plan = replace(plan, layers=by_cost)
        if by_cost != was:
            given_up = "+".join(map(str, was))
            yield (
                f"layers {given_up}: nanotron cuts by cost, {'+'.join(map(str, by_cost))}",
                plan,
            )
    if plan.zero > 1:
        plan = replace(plan, zero=1)
        yield "zero: nanotron has 0 and 1; zero=1 is written", plan
    if plan.recompute not in (NONE, FULL):
        kind = plan.recompute
        plan = replace(plan, recompute=FULL if kind != "selective" else NONE)
        given_up = f"recompute={kind}: nanotron has all layers or none; {plan.recompute} is written"
        yield given_up, plan
    if plan.precision != "bf16-master":
        given_up = (
            f"precision {plan.precision}: nanotron has bf16 parameters with a fp32 copy"
        )
        plan = replace(plan, precision="bf16-master")
        yield f"{given_up}; bf16-master is written", plan
    if plan.optimizer == "adam":
        plan = replace(plan, optimizer="adamw")
        yield "optimizer adam: adamW is written", plan


def check_degrees(plan: LaunchPlan) -> None:
    """Check that nanotron has the kinds of parallelism of a plan.

    Raises:
        InfeasibleError: If it lacks one.
    """
    if plan.cp > 1 or plan.ep > 1:
        raise InfeasibleError(
            "nanotron: cp and ep fail at the version that is written for"
        )


def write_nanotron(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return the text of a configuration of nanotron, with made-up data.

    Args:
        plan: The plan as `nearest_nanotron` leaves it.
        lines: Lines for the head of the file.
        gpus: GPUs of a server. Not written, since torchrun is told them.

    Raises:
        InfeasibleError: nanotron has no such model.
    """
    sizes = plan.sizes
    details = plan.details
    # Refuse layers that nanotron's Llama does not have.
    if details is not None and details.type not in TYPES:
        feature = BESIDE_LLAMA.get(details.type, "layers of its own")
        raise InfeasibleError(
            f"nanotron: trains Llama's layers, and {details.type} has {feature}; take another "
            "launcher"
        )
    if details is not None and details.rotary_part < 1:
        raise InfeasibleError(
            f"nanotron: rotates whole heads, and {details.name} {details.rotary_part:g} of each; "
            "take another launcher"
        )
    if sizes is None or sizes.kind != "llama" or sizes.own_head_size:
        raise InfeasibleError(
            "nanotron: trains Llama's layers; give --model hf:llama?… or the like"
        )
    # nanotron calls Llama's layers with biases of queries, keys and values Qwen2.
    is_qwen = details is not None and details.query_biases
    check_degrees(plan)
    data: dict[str, Any] = {
        "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints"},
        "data_stages": [
            {
                "name": "made up",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "gnnplace", "run": "plan", "seed": 42},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info"},
        "model": {
            "dtype": "bfloat16",
            "ddp_bucket_cap_mb": 25,
            "make_vocab_size_divisible_by": 1,
            "init_method": {"std": 0.02},
            "model_config": {
                "is_qwen2_config" if is_qwen else "is_llama_config": True,
                "hidden_size": sizes.hidden,
                "hidden_act": "silu",
                "intermediate_size": sizes.feed_forward,
                "num_hidden_layers": sizes.layers,
                "num_attention_heads": sizes.heads,
                "num_key_value_heads": sizes.kv_heads,
                "max_position_embeddings": sizes.length,
                "vocab_size": sizes.vocabulary,
                "tie_word_embeddings": sizes.tied,
                "initializer_range": 0.02,
                **_layer_keys(details),
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
        },
        "optimizer": {
            "accumulate_grad_in_fp32": plan.gradients == "fp32",
            "clip_grad": 1.0,
            "weight_decay": 0.01,
            "zero_stage": plan.zero,
            "learning_rate_scheduler": {
                "learning_rate": 1e-4,
                "lr_warmup_steps": 2,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "min_decay_lr": 1e-5,
            },
            "optimizer_factory": _factory(plan),
        },
        "parallelism": {
            "dp": plan.dp,
            "pp": plan.pp,
            "tp": plan.tp,
            "expert_parallel_size": 1,
            "pp_engine": "afab" if plan.schedule == "gpipe" else "1f1b",
            "tp_mode": "REDUCE_SCATTER" if plan.sp else "ALL_REDUCE",
            "tp_linear_async_communication": "tp" in plan.overlap,
            "recompute_layer": plan.recompute == FULL,
        },
        "tokenizer": {"tokenizer_name_or_path": "robot-test/dummy-tokenizer-wordlevel"},
        "tokens": {
            "batch_accumulation_per_replica": plan.microbatches,
            "train_steps": 20,
            "micro_batch_size": plan.microbatch_size,
            "sequence_length": sizes.length,
            "val_check_interval": -1,
        },
    }
    header_lines = [f"# {line}" for line in header(plan, lines)]
    return "\n".join(
        [*header_lines, yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False)]
    )


def _layer_keys(details: LayerDetails | None) -> dict[str, float | bool]:
    """Return keys of norms, rotary positions and biases."""
    keys: dict[str, float | bool] = {"rms_norm_eps": 1e-5}
    if details is None:
        return keys
    if details.norm_epsilon is not None:
        keys["rms_norm_eps"] = details.norm_epsilon
    if details.rotary_base is not None:
        keys["rope_theta"] = float(details.rotary_base)
    if details.query_biases:
        keys["attention_bias"] = True
    return keys


def _factory(plan: LaunchPlan) -> dict[str, Any]:
    if plan.optimizer == "sgd":
        return {"name": "sgd"}
    return {
        "name": "adamW",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1e-8,
        "torch_adam_is_fused": True,
    }


def read_nanotron(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a configuration of nanotron.

    Args:
        text: The YAML.
        source: The file's path, which errors begin with.
        values: Values for its keys, by their paths.

    Raises:
        FormatError: If it is none, or its sizes contradict.
    """
    data = put_values(parse_yaml(text, source), values or {}, source)
    keys = Keys(data, source, yaml_lines(text))
    unknown = keys.unknown("", TOP) + keys.unknown("parallelism", PARALLEL)
    if unknown:
        notes = [f"keys that are not known, and not priced: {', '.join(unknown)}"]
    else:
        notes = []
    sizes = _sizes(keys)
    dp, tp, pp = (keys.needed(f"parallelism.{name}") for name in ("dp", "tp", "pp"))
    size = keys.needed("tokens.micro_batch_size")
    steps = keys.count("tokens.batch_accumulation_per_replica", 1) or 1
    mode = keys.word(
        "parallelism.tp_mode", ("ALL_REDUCE", "REDUCE_SCATTER"), "ALL_REDUCE"
    )
    # nanotron's default engine runs all forward passes first, as GPipe does.
    engine = keys.word("parallelism.pp_engine", ("afab", "1f1b"), "afab")
    name = str(keys.get("optimizer.optimizer_factory.name") or "adamW").lower()
    half = keys.word("model.dtype", ("bfloat16", "float16", "float32"), "bfloat16")
    fp32 = keys.switch("optimizer.accumulate_grad_in_fp32")
    hidden = keys.switch("parallelism.tp_linear_async_communication")
    plan = LaunchPlan(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=keys.count("parallelism.context_parallel_size", 1) or 1,
        ep=keys.count("parallelism.expert_parallel_size", 1) or 1,
        sp=tp == 1 or mode == "REDUCE_SCATTER",
        layers=cut_by_cost(sizes, pp) if pp > 1 else None,
        microbatch_size=size,
        batch=dp * size * steps,
        zero=min(keys.count("optimizer.zero_stage", 0, least=0) or 0, 1),
        recompute=FULL if keys.switch("parallelism.recompute_layer") else NONE,
        schedule="gpipe" if engine == "afab" and pp > 1 else "1f1b",
        precision={"bfloat16": "bf16-master", "float16": "16-master"}.get(
            half, "32-true"
        ),
        gradients="fp32" if fp32 and half != "float32" else "same",
        optimizer="sgd"
        if name == "sgd"
        else "adamw"
        if name in ("adamw", "adam")
        else name,
        overlap=("tp",) if hidden else (),
        sizes=sizes,
        notes=tuple(notes),
        not_priced=tuple(_iterate_unpriced(keys, name)),
        lines=keys.word_lines(WORD_KEYS),
    )
    return check_plan_words(plan, source)


def _sizes(keys: Keys) -> DecoderSizes:
    """Return the sizes of the model.

    Raises:
        FormatError: If one is missing, its experts are not those of all last layers, or its layers
            have no attention.
    """
    model = "model.model_config."
    if keys.switch(f"{model}is_mamba_config"):
        raise keys.fault(f"{model}is_mamba_config", "layers of Mamba are not priced")
    if keys.switch(f"{model}is_starcoder2_config"):
        return _starcoder2_sizes(keys)
    heads = keys.needed(f"{model}num_attention_heads")
    layers = keys.needed(f"{model}num_hidden_layers")
    experts: ExpertLayers | None = None
    # Experts are in all layers, or in those that are listed, with nanotron's own defaults.
    part = f"{model}moe_config."
    if keys.has(f"{model}moe_config"):
        listed = keys.get(f"{part}layers")
        if listed in (None, [-1]):
            indices = list(range(layers))
        else:
            indices = listed
        if not isinstance(indices, list) or indices != list(
            range(layers - len(indices), layers)
        ):
            raise keys.fault(
                f"{part}layers", "experts must be in all last layers to be priced"
            )
        has_shared = keys.switch(f"{part}enable_shared_expert")
        shared = keys.count(f"{part}shared_expert_intermediate_size", 5632) or 0
        if indices:
            experts = ExpertLayers(
                count=keys.count(f"{part}num_experts", 8) or 8,
                active=keys.count(f"{part}top_k", 2) or 2,
                width=keys.count(f"{part}moe_intermediate_size", 1408) or 1408,
                shared=shared if has_shared else 0,
                dense=layers - len(indices),
            )
    return DecoderSizes(
        layers=layers,
        hidden=keys.needed(f"{model}hidden_size"),
        heads=heads,
        kv_heads=keys.count(f"{model}num_key_value_heads", heads) or heads,
        feed_forward=keys.needed(f"{model}intermediate_size"),
        length=keys.needed("tokens.sequence_length"),
        vocabulary=keys.needed(f"{model}vocab_size"),
        tied=keys.switch(f"{model}tie_word_embeddings"),
        experts=experts,
    )


def _starcoder2_sizes(keys: Keys) -> DecoderSizes:
    """Return the sizes of a Starcoder2: plain layers with biases, rotary positions, a tied head.

    Its defaults are those of `Starcoder2Config` of nanotron (`config/models_config.py`).

    Raises:
        FormatError: If one is missing.
    """
    model = "model.model_config."
    hidden = keys.needed(f"{model}hidden_size")
    if keys.switch(f"{model}grouped_query"):
        kv_heads = keys.needed(f"{model}num_kv_heads")
    else:
        kv_heads = 1
    return DecoderSizes(
        layers=keys.needed(f"{model}num_hidden_layers"),
        hidden=hidden,
        heads=keys.needed(f"{model}num_attention_heads"),
        kv_heads=kv_heads,
        feed_forward=keys.count(f"{model}intermediate_size", 4 * hidden) or 4 * hidden,
        length=keys.needed("tokens.sequence_length"),
        vocabulary=keys.needed(f"{model}vocab_size"),
        gated=False,
        positions=0,
        tied=True,
    )


def _iterate_unpriced(keys: Keys, optimizer: str) -> Iterator[NotPriced]:
    """Yield what changes seconds or bytes and no price counts."""
    model = "model.model_config."
    effects = {
        f"{model}sliding_window_size": "attention in a window; priced over all tokens",
        f"{model}flex_attention_mask": "attention with a mask; priced over all tokens",
        f"{model}_use_doc_masking": "attention within documents; priced over all tokens",
        f"{model}z_loss_enabled": "a second loss over the logits; priced without",
    }
    for path, effect in effects.items():
        if keys.has(path) and keys.get(path) not in (False, 0, "causal"):
            yield NotPriced(key=path, effect=effect, line=keys.line(path))
    path = f"{model}_attn_implementation"
    attention = keys.get(path)
    if attention not in (None, "flash_attention_2"):
        effect = f"attention by {str(attention)[:40]}; priced with the framework's usual kernels"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
    for name in ("_fused_rms_norm", "_fused_rotary_emb"):
        if keys.get(f"{model}{name}") is False:
            effect = "by unfused kernels; priced with the framework's usual ones"
            yield NotPriced(
                key=f"{model}{name}", effect=effect, line=keys.line(f"{model}{name}")
            )
    if optimizer not in PRICED_OPTIMIZERS:
        path = "optimizer.optimizer_factory.name"
        effect = f"the update and the state of {optimizer}; priced as adamw"
        yield NotPriced(key=path, effect=effect, line=keys.line(path))
