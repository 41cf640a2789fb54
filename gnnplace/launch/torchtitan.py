"""torchtitan: a Python module with a function that returns a `Trainer.Config`.

Written for and read by torchtitan b5bcd76c (August 2026): `config/configs.py`,
`distributed/pipeline_parallel.py`, `models/llama3/config_registry.py`. What is written begins with
one of its configurations and sets what the plan decides, so that it starts as `run_train.sh` does;
a model that its registries lack is registered by the module (`torchtitan_model`). A module is read
as text, by Python's `ast`; nothing of it is imported or run: keywords of configurations and
attributes that are set to literals count, in the order in which they stand, those of the function
that it begins with first.

Micro-batches are told in tokens. Stages without a list of modules are cut by torchtitan's own rule
(`plans.decoders.stages`, "ends"), two a rank for all schedules but GPipe and 1F1B. FSDP is ZeRO 3;
with stages it keeps parameters gathered and sums whole gradients. Parameters are fp32, gathered in
bf16; gradients are reduced in fp32.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gnnplace.errors import FormatError, InfeasibleError
from gnnplace.launch.keys import Keys
from gnnplace.launch.launch_plan import (
    FULL,
    NONE,
    SELECTIVE,
    LaunchPlan,
    check_plan_words,
    header,
    with_header,
)
from gnnplace.launch.layer_details import LLAMA, YARN, LayerDetails
from gnnplace.launch.offloading import EVERYTHING, fsdp_offload
from gnnplace.launch.torchtitan_model import (
    FLAVOR,
    config_lines,
    find_block_family,
    model_imports,
    model_lines,
    read_model,
)
from gnnplace.launch.torchtitan_toml import describe_unknown, read_toml
from gnnplace.plans import (
    ZBV,
    DecoderSizes,
    ExpertLayers,
    LatentAttention,
    PlanFile,
    cut_layers,
)

MODELS: Mapping[str, tuple[str, DecoderSizes]] = {
    "llama3_debugmodel": ("debugmodel", DecoderSizes(6, 256, 16, 16, 768, 2048, 2048)),
    "llama3_8b": ("8B", DecoderSizes(32, 4096, 32, 8, 14336, 8192, 128256)),
    "llama3_70b": ("70B", DecoderSizes(80, 8192, 64, 8, 28672, 8192, 128256)),
    "llama3_405b": ("405B", DecoderSizes(126, 16384, 128, 8, 53248, 8192, 128256)),
    "deepseek_v3_16b": (
        "16B",
        DecoderSizes(
            27,
            2048,
            16,
            16,
            10944,
            4096,
            102400,
            own_head_size=192,
            experts=ExpertLayers(64, 6, 1408, 2816, 1),
            latent=LatentAttention(0, 512, 64, 128),
        ),
    ),
    "deepseek_v3_671b": (
        "671B",
        DecoderSizes(
            61,
            7168,
            128,
            128,
            18432,
            4096,
            129280,
            own_head_size=192,
            experts=ExpertLayers(256, 8, 2048, 2048, 3),
            latent=LatentAttention(1536, 512, 64, 128),
        ),
    ),
    "qwen3_0_6b": (
        "0.6B",
        DecoderSizes(
            28,
            1024,
            16,
            8,
            3072,
            4096,
            151936,
            tied=True,
            own_head_size=128,
            head_norms=True,
        ),
    ),
    "qwen3_1_7b": (
        "1.7B",
        DecoderSizes(28, 2048, 16, 8, 6144, 4096, 151936, tied=True, head_norms=True),
    ),
    "qwen3_14b": (
        "14B",
        DecoderSizes(40, 5120, 40, 8, 17408, 4096, 151936, head_norms=True),
    ),
    "qwen3_32b": (
        "32B",
        DecoderSizes(
            64, 5120, 64, 8, 25600, 4096, 151936, own_head_size=128, head_norms=True
        ),
    ),
    "qwen3_30b_a3b": (
        "30B-A3B",
        DecoderSizes(
            48,
            2048,
            32,
            4,
            6144,
            4096,
            151936,
            own_head_size=128,
            head_norms=True,
            experts=ExpertLayers(128, 8, 768),
        ),
    ),
    "gpt_oss_20b": (
        "20b",
        DecoderSizes(
            24,
            2880,
            64,
            8,
            2880,
            4096,
            201088,
            own_head_size=64,
            vectors=13856,
            expert_vectors=276_480,
            experts=ExpertLayers(32, 4, 2880),
        ),
    ),
    "gpt_oss_120b": (
        "120b",
        DecoderSizes(
            36,
            2880,
            64,
            8,
            2880,
            4096,
            201088,
            own_head_size=64,
            vectors=13952,
            expert_vectors=1_105_920,
            experts=ExpertLayers(128, 4, 2880),
        ),
    ),
}
LOOPED = {"pipeline_parallel_schedule": "Interleaved1F1B"}
BASES: Mapping[str, tuple[int, int, Mapping[str, Any], str]] = {
    "llama3_debugmodel": (8 * 2048, 2048, LOOPED, SELECTIVE),
    "llama3_8b": (8192, 8192, {}, SELECTIVE),
    "llama3_70b": (8 * 8192, 8192, {"tensor_parallel_degree": 8}, FULL),
    "llama3_405b": (2 * 8192, 8192, {"tensor_parallel_degree": 8}, FULL),
    "deepseek_v3_16b": (
        4 * 4096,
        4096,
        {**LOOPED, "expert_parallel_degree": 8},
        SELECTIVE,
    ),
    "deepseek_v3_671b": (
        4 * 4096,
        4096,
        {**LOOPED, "expert_parallel_degree": 2},
        SELECTIVE,
    ),
    "qwen3_0_6b": (4 * 4096, 4096, {}, SELECTIVE),
    "qwen3_1_7b": (4 * 4096, 4096, {}, SELECTIVE),
    "qwen3_14b": (4 * 4096, 4096, {}, FULL),
    "qwen3_32b": (2 * 4096, 4096, {}, FULL),
    "qwen3_30b_a3b": (2 * 4096, 4096, {}, FULL),
    "gpt_oss_20b": (8192, 8192, {}, FULL),
    "gpt_oss_120b": (8192, 8192, {}, FULL),
}
"""Tokens of a micro-batch and of an example, degrees and recomputation of its configurations."""
LAYERS: Mapping[str, LayerDetails] = {
    "llama3": LayerDetails(
        type="llama",
        rotary_base=500_000,
        norm_epsilon=1e-5,
        rotary_scaling=(
            ("factor", 8),
            ("high_freq_factor", 4),
            ("low_freq_factor", 1),
            ("original_max_position_embeddings", 8192),
            ("rope_type", LLAMA),
        ),
    ),
    "qwen3_30b_a3b": LayerDetails(
        type="qwen3_moe", rotary_base=1_000_000, norm_epsilon=1e-6
    ),
    "qwen3": LayerDetails(type="qwen3", rotary_base=1_000_000, norm_epsilon=1e-6),
    "gpt_oss": LayerDetails(
        type="gpt_oss",
        rotary_base=150_000,
        norm_epsilon=1e-5,
        rotary_scaling=(
            ("beta_fast", 32.0),
            ("beta_slow", 1.0),
            ("factor", 32.0),
            ("original_max_position_embeddings", 4096),
            ("rope_type", YARN),
            ("truncate", False),
        ),
    ),
}
"""What layers of its configurations have beside sizes, by what the names of these begin with."""
DEEPSEEK_EPSILON = 1e-5
"""Of norms of its DeepSeek-V3, which the published models do not have."""
# Folders of `torchtitan/models`.
FAMILIES = ("llama3", "deepseek_v3", "qwen3", "gpt_oss")
SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "ZBVZeroBubble": ZBV,
}
LISTED, BESIDE = "PipelineScheduleMulti", "pipeline_parallel_schedule_csv"
"""The name of schedules that a file lists, and the key that names the file."""
RESHARD = "fsdp_reshard_after_forward"
"""The key that says whether FSDP's parameters stay gathered between passes: "default" shards them
again where there are no stages, and keeps them for the whole step where there are."""
ONE_STAGE = ("1F1B", "GPipe", "PipelineScheduleSingle")
RECOMPUTE = {"FullAC": FULL, "SelectiveAC": SELECTIVE}
FUNCTION = "gnnplace_plan"
MOST_CALLS = 20
"""How deep functions of configurations that call one another are read."""
CONFIGS = {
    "ParallelismConfig": "parallelism",
    "TrainingConfig": "training",
    "CompileConfig": "compile",
}
WORD_KEYS: Mapping[str, tuple[str, ...]] = {
    "dp": ("parallelism.data_parallel_shard_degree",),
    "tp": ("parallelism.tensor_parallel_degree",),
    "pp": ("parallelism.pipeline_parallel_degree",),
    "cp": ("parallelism.context_parallel_degree",),
    "ep": ("parallelism.expert_parallel_degree",),
    "sp": ("parallelism.enable_sequence_parallel",),
    "layers": ("parallelism.module_fqns_per_model_part",),
    "schedule": ("parallelism.pipeline_parallel_schedule",),
    "microbatch_size": ("training.num_tokens_per_microbatch_per_dp_rank",),
    "batch": ("training.num_tokens_per_train_step",),
    "zero": ("parallelism.data_parallel_shard_degree",),
    "recompute": ("activation_checkpoint",),
    "precision": ("training.mixed_precision_param", "training.dtype"),
    "compile": ("compile.enable",),
    "cuda_graphs": ("training.disable_cuda_graphs",),
}
FLOAT8 = "405B"  # its own configuration has float8 products, under torch.compile


def nearest_torchtitan(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield what torchtitan cannot express, one thing at a time.

    Yields:
        A line for the user, and the nearest plan so far that torchtitan can express.
    """
    # Steps that torchtitan can capture.
    still = plan.pp == 1 and not (plan.sizes and plan.sizes.experts)
    for given_up, run in plan.as_it_runs(
        "torchtitan", compiles=True, graphs=("iteration",) * still
    ):
        plan = run
        yield given_up, plan
    if plan.zero == 1 and (plan.dp or 1) * plan.cp > 1:
        plan = replace(plan, zero=3)
        yield "zero=1: torchtitan has replicas or FSDP; zero=3 is written", plan
    if plan.zero == 2 and plan.pp > 1:
        plan = replace(plan, zero=3)
        line = (
            "zero=2: in a pipeline torchtitan gathers parameters once a step by itself"
        )
        yield f"{line}, as zero=3", plan
    if plan.zero == 0 and plan.cp > 1:
        plan = replace(plan, zero=3, group=1 if (plan.dp or 1) > 1 else None)
        line = "zero=0: torchtitan shards parameters over cp; zero=3 in groups of cp is written"
        yield line, plan
    for line, run in plan.without_unsayable(
        "torchtitan",
        zero_groups=(2, 3),
        gradients="fp32",
        offloads=(EVERYTHING,)
        if plan.zero == 3 and (plan.dp or 1) * plan.cp > 1
        else (),
    ):
        plan = run
        yield line, plan
    for given_up, uncut in plan.with_whole_experts("torchtitan"):
        plan = uncut
        yield given_up, plan
    if plan.ep > plan.cp * plan.tp and not plan.zero:
        plan = replace(plan, zero=3)
        yield (
            "zero=0: torchtitan's experts lie on FSDP's shards; zero=3 is written",
            plan,
        )
    for given_up, ordered in _with_own_order(plan):
        plan = ordered
        yield given_up, plan
    if plan.recompute not in (NONE, FULL, SELECTIVE):
        given_up = f"recompute={plan.recompute}: torchtitan has all layers, parts of each, or none"
        plan = replace(plan, recompute=FULL)
        yield f"{given_up}; full is written", plan
    if plan.precision not in ("bf16-mixed", "32-true", "bf16-true"):
        given_up = f"precision {plan.precision}: torchtitan has fp32 parameters gathered in bf16"
        plan = replace(plan, precision="bf16-mixed")
        yield f"{given_up}; bf16-mixed is written", plan
    if plan.optimizer not in (None, "adamw"):
        given_up = f"optimizer {plan.optimizer}: AdamW is written"
        plan = replace(plan, optimizer="adamw")
        yield given_up, plan


def _with_own_order(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield a plan in the shape of a V with PyTorch's order of it, and without compiled stages."""
    if plan.schedule == "v":
        plan = replace(plan, schedule=ZBV)
        yield "schedule v: torchtitan runs PyTorch's own order; zbv is written", plan
    if plan.compile and plan.schedule == ZBV:
        # `_check_torch_compile_compatibility` of torch.distributed.pipelining refuses both.
        plan = replace(plan, compile=False)
        yield "compile=on: PyTorch's zbv runs no compiled stages; off is written", plan


def schedule_csv(plan: PlanFile) -> str | None:
    """Return the schedule as a CSV file beside the module, or None if torchtitan has a name for it.

    Schedules in the shape of a V have their own names, which say which rank has which stage. A file
    cannot say that.
    """
    if not plan.schedule.startswith("zero-bubble"):
        return None
    # Orders are compiled, which takes a while to import and reading a file does not need.
    from gnnplace.plans import as_csv, parse_rows

    return as_csv(parse_rows(plan.actions, "plan"), len(plan.stages))


def write_torchtitan(plan: LaunchPlan, lines: Sequence[str], gpus: int = 8) -> str:
    """Return a module for `--module FILE --config gnnplace_plan`.

    A model of torchtitan's registry begins with its configuration there. One of other sizes is
    registered by the module itself (`torchtitan_model`).

    Args:
        plan: The plan as `nearest_torchtitan` leaves it.
        lines: Lines for the head of the file.
        gpus: GPUs of a server. Not written, since torchrun is told them.

    Raises:
        InfeasibleError: torchtitan has no code for such a model, or cannot train it by this plan.
    """
    sizes = plan.sizes
    if sizes is None:
        raise InfeasibleError(
            "torchtitan: the sizes of the model are not known; give --model"
        )
    base = _find_registered(sizes, plan.details)
    family = None if base else find_block_family(sizes, plan.details)
    if sizes.tied and plan.pp > 1:
        raise InfeasibleError(
            "torchtitan: cuts no model with a tied embedding into stages"
        )
    if sizes.kv_heads % plan.tp:
        raise InfeasibleError(
            f"torchtitan: tp {plan.tp} must divide {sizes.kv_heads} heads of keys and values"
        )
    if sizes.experts and plan.tp > 1 and plan.etp != 1:
        raise InfeasibleError(
            "torchtitan: cuts no expert, and ep x tp does not divide them"
        )

    checkpointing = {FULL: "FullAC", SELECTIVE: "SelectiveAC"}.get(plan.recompute)
    has_listed_order = plan.pp > 1 and plan.schedule not in SCHEDULES.values()
    title = [line.replace("\\", "/").replace('"', "'") for line in header(plan, lines)]
    title += header(plan, [], keys=("schedule",)) if has_listed_order else []

    # What the function needs, then what registers the model, then what the function sets.
    imports = ["from pathlib import Path"] if has_listed_order else []
    if checkpointing:
        imports.append(
            f"from torchtitan.distributed.activation_checkpoint import {checkpointing}"
        )
    model: list[str] = []
    if family is None:
        needed, body = _find_known_model(base, plan.details)
    else:
        base = family.find_base(sizes)
        needed, body = model_imports(family, sizes), config_lines(plan.details)
        model = ["", *model_lines(family, sizes, plan.details)]
    imports += needed
    body += [
        f"config.{name} = {value!r}" for name, value in _settings(plan, sizes).items()
    ]
    if has_listed_order:
        path = 'str(Path(__file__).with_suffix(".csv"))'
        body.append(f"config.parallelism.{BESIDE} = {path}")
    recomputed = f"{checkpointing}.Config()" if checkpointing else "None"
    body += [f"config.activation_checkpoint = {recomputed}", "return config"]

    function = [
        f"def {FUNCTION}():",
        *(f"    {line}" for line in [f"config = {base}()", *body]),
    ]
    text = [
        '"""',
        *title,
        '"""',
        "",
        *_sort_imports(imports),
        *model,
        "",
        "",
        *function,
    ]
    return "\n".join(text) + "\n"


def _find_known_model(
    base: str, details: LayerDetails | None
) -> tuple[list[str], list[str]]:
    """Return the imports of a configuration of torchtitan's own, and what must be set besides.

    Args:
        base: The function of the configuration.
        details: The norms of the model, where they are known.
    """
    package = next(folder for folder in FAMILIES if base.startswith(folder))
    imports = [f"from torchtitan.models.{package}.config_registry import {base}"]
    epsilon = None if details is None else details.norm_epsilon
    if package != "deepseek_v3" or epsilon in (None, DEEPSEEK_EPSILON):
        return imports, []
    loop = "for _, norm, _, _ in config.model_spec.traverse(RMSNorm.Config):"
    imports.append("from torchtitan.models.common import RMSNorm")
    return imports, [loop, f"    norm.eps = {epsilon!r}"]


def _find_registered(sizes: DecoderSizes, details: LayerDetails | None) -> str:
    """Return the function of torchtitan's configuration of a model, or "" if it has none.

    A model of the same sizes with other rotary positions or norms is another model.
    """
    for name, (_, registered) in MODELS.items():
        if replace(registered, length=sizes.length) != sizes:
            continue
        layers = next(
            (
                layers_of_kind
                for start, layers_of_kind in LAYERS.items()
                if name.startswith(start)
            ),
            None,
        )
        if details is None or layers is None or _are_same_layers(details, layers):
            return name
    return ""


def _are_same_layers(details: LayerDetails, registered: LayerDetails) -> bool:
    """Return whether what is known of a model's layers is that of torchtitan's own."""
    scaling = {key: details.scaling.get(key) for key in registered.scaling}
    return (
        details.type in (registered.type, "")
        and details.rotary_base in (None, registered.rotary_base)
        and details.norm_epsilon in (None, registered.norm_epsilon)
        and bool(details.scaling) == bool(registered.scaling)
        and scaling == registered.scaling
    )


def _sort_imports(imports: Sequence[str]) -> list[str]:
    """Return statements of imports in order, the standard library's first, then PyTorch's."""
    groups: list[list[str]] = [[], [], []]
    for line in sorted(imports):
        package = line.split()[1].partition(".")[0]
        groups[
            ("torch", "torchtitan").index(package) + 1 if "torch" in package else 0
        ].append(line)
    lines: list[str] = []
    for group in groups:
        lines += [*([""] if lines and group else []), *group]
    return lines


def _settings(plan: LaunchPlan, sizes: DecoderSizes) -> dict[str, Any]:
    """Return the values that a plan decides, by their paths in torchtitan's configuration."""
    dp, tokens = plan.dp or 1, (plan.microbatch_size or 1) * sizes.length
    shard = (plan.group or dp) if plan.zero else 1
    schedules = {ours: theirs for theirs, ours in SCHEDULES.items()}
    settings: dict[str, Any] = {
        "parallelism.data_parallel_replicate_degree": dp // shard,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.tensor_parallel_degree": plan.tp,
        "parallelism.enable_sequence_parallel": plan.sp,
        "parallelism.context_parallel_degree": plan.cp,
        "parallelism.expert_parallel_degree": plan.ep,
        "parallelism.pipeline_parallel_degree": plan.pp,
        "training.num_tokens_per_microbatch_per_dp_rank": tokens,
        "training.num_tokens_per_train_step": (plan.batch or 1) * sizes.length,
        "training.max_context_length": sizes.length,
        "training.dtype": "bfloat16" if plan.precision == "bf16-true" else "float32",
        "training.mixed_precision_param": "float32"
        if plan.precision == "32-true"
        else "bfloat16",
    }
    if plan.zero == 2:
        settings[f"parallelism.{RESHARD}"] = "never"
    if plan.offload != NONE:
        settings["training.enable_cpu_offload"] = True
    settings["compile.enable"] = plan.compile
    settings |= {"compile.components": ["model", "loss"]} if plan.compile else {}
    if plan.pp > 1 or sizes.experts or plan.cuda_graphs == "off":
        # torchtitan refuses stages beside CUDA graphs.
        settings["training.disable_cuda_graphs"] = True
    elif plan.cuda_graphs:
        settings["training.disable_cuda_graphs"] = False
    if plan.pp > 1:
        layers = plan.layers or (sizes.layers // (plan.pp * plan.chunks),) * (
            plan.pp * plan.chunks
        )
        settings |= {
            "parallelism.pipeline_parallel_schedule": schedules.get(
                plan.schedule, LISTED
            ),
            "parallelism.num_pp_microbatches": plan.microbatches,
            "parallelism.module_fqns_per_model_part": name_stage_modules(layers),
        }
    return settings


def name_stage_modules(layers: Sequence[int]) -> list[list[str]]:
    """Return the names of the modules of every stage, given each stage's number of layers.

    The first stage has the embedding too, and the last has the norm and the head.
    """
    modules, begin = list[list[str]](), 0
    for count in layers:
        modules.append([f"layers.{k}" for k in range(begin, begin + count)])
        begin += count
    modules[0].insert(0, "tok_embeddings")
    modules[-1] += ["norm", "lm_head"]
    return modules


def read_torchtitan(
    text: str, source: str, values: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan of a module of configurations, or of a TOML.

    Args:
        text: The file.
        source: The file's path, which errors begin with. `:FUNCTION` behind it names one of
            several.
        values: Values for the keys of a TOML, by their paths.

    Raises:
        FormatError: If it is neither, has several functions and none is named, or its numbers
            contradict.
    """
    if source.endswith(".toml") or re.search(r"(?m)^\[[a-z_]+\]\s*$", text):
        return read_toml(text, source, values or {}, MODELS)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"{source}: not Python: {str(error)[:80]}") from None
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    name = source.rpartition(":")[2] if re.search(r":\w+$", source) else ""
    if not name and FUNCTION in functions:
        name = FUNCTION
    if not name and len(functions) == 1:
        name = next(iter(functions))
    if name not in functions:
        listed = ", ".join(list(functions)[:8]) or "none"
        raise FormatError(
            f"{source}: say which function, as FILE:NAME; it has {listed}"
        )
    data, model = _read_function(functions, name, 0)
    sizes = next((sizes for flavor, sizes in MODELS.values() if flavor == model), None)
    if model == FLAVOR:
        sizes = read_model(tree.body, source)
    plan = with_header(_plan(Keys(data, source), model, sizes), text, source)
    return replace(plan, notes=()) if plan.schedule == "zero-bubble" else plan


def _read_function(
    functions: Mapping[str, ast.FunctionDef], name: str, depth: int
) -> tuple[dict[str, Any], str | None]:
    """Return what a function of configurations sets, by roots, and the flavor of its model."""
    data: dict[str, Any] = {
        "activation_checkpoint": SELECTIVE,
        "training": {},
        "parallelism": {},
        "compile": {},
    }
    model = None
    # Statements count in their order: what a later one sets replaces what a base function set.
    for node in (x for statement in functions[name].body for x in ast.walk(statement)):
        if isinstance(node, ast.Call):
            base = _join_dotted(node.func).rpartition(".")[2]
            if base in functions and base != name and depth < MOST_CALLS:
                data, model = _read_function(functions, base, depth + 1)
            elif base in MODELS and base not in functions:
                data, model = _base_settings(base), MODELS[base][0]
            elif (
                base == "model_registry"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                flavor = str(node.args[0].value)
                model = _find_known_flavor(name, flavor)
                data["unknown_model"] = "" if model else describe_unknown(flavor, name)
                data["converters"] = _converters(node)
            elif base in CONFIGS:
                data[CONFIGS[base]] |= {
                    k.arg: _literal(k.value) for k in node.keywords if k.arg
                }
            for keyword in node.keywords:
                if keyword.arg == "activation_checkpoint":
                    data["activation_checkpoint"] = _checkpointing(keyword.value)
        elif isinstance(node, ast.Assign) and isinstance(
            node.targets[0], ast.Attribute
        ):
            path = _join_dotted(node.targets[0]).split(".")[1:]
            if path == ["activation_checkpoint"]:
                data["activation_checkpoint"] = _checkpointing(node.value)
            elif len(path) == 2 and path[0] in CONFIGS.values():
                data[path[0]][path[1]] = _literal(node.value)
    return data, model


def _conversion_notes(keys: Keys, model: str | None) -> list[str]:
    """Return a line for what a model is converted by, such as to products in float8."""
    notes = ["float8 products: priced in bf16"] if model == FLOAT8 else []
    converters = keys.get("converters")
    if isinstance(converters, list) and converters:
        listed = ", ".join(map(str, converters))
        notes.append(
            f"converters {listed}: priced in bf16, and without what they change"
        )
    return notes


def _converters(call: ast.Call) -> list[str]:
    """Return the names of what a model's configuration is converted by, such as to float8."""
    values = [k.value for k in call.keywords if k.arg == "converters"]
    calls = [
        _join_dotted(node.func)
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Call)
    ]
    names = [name.removesuffix(".Config").rpartition(".")[2] for name in calls]
    unknown = [ast.unparse(value) for value in values if not calls]
    return [name for name in (*names, *unknown) if name and name not in ("None", "[]")]


def _find_known_flavor(function: str, flavor: str) -> str | None:
    """Return the flavor that a function asks for, if the sizes of that model are known."""
    if flavor == FLAVOR:
        return flavor
    family = next((folder for folder in FAMILIES if function.startswith(folder)), "")
    same = (
        flavor == listed and base.startswith(family)
        for base, (listed, _) in MODELS.items()
    )
    return flavor if any(same) else None


def _base_settings(base: str) -> dict[str, Any]:
    """Return what a configuration of torchtitan's own sets."""
    tokens, length, degrees, recomputed = BASES[base]
    training = {
        "num_tokens_per_microbatch_per_dp_rank": tokens,
        "max_context_length": length,
    }
    return {
        "activation_checkpoint": recomputed,
        "training": training,
        "parallelism": {**degrees},
        "compile": {"enable": FLOAT8 in base.upper()},
    }


def _checkpointing(node: ast.expr) -> str:
    name = _join_dotted(node.func if isinstance(node, ast.Call) else node).partition(
        "."
    )[0]
    return RECOMPUTE.get(name, NONE)


def _join_dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(
        [*([node.id] if isinstance(node, ast.Name) else [""]), *reversed(parts)]
    )


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal or of a product of whole numbers, or None if it is neither."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        first, right = _literal(node.left), _literal(node.right)
        return first * right if type(first) is type(right) is int else None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _plan(keys: Keys, model: str | None, sizes: DecoderSizes | None) -> LaunchPlan:
    length = keys.count("training.max_context_length", 2048) or 2048
    sizes = None if sizes is None else replace(sizes, length=length)
    prefix, tokens = "parallelism.", "training.num_tokens_per_"
    # torchtitan counts tokens, and a plan counts examples of this length.
    tokens_of_microbatch = keys.count(f"{tokens}microbatch_per_dp_rank", 16384) or 16384
    if tokens_of_microbatch % length:
        raise keys.fault(
            f"{tokens}microbatch_per_dp_rank", f"is no multiple of {length} tokens"
        )
    pp = keys.count(f"{prefix}pipeline_parallel_degree", 1) or 1
    tp = keys.count(f"{prefix}tensor_parallel_degree", 1) or 1
    cp = keys.count(f"{prefix}context_parallel_degree", 1) or 1
    replicate = keys.count(f"{prefix}data_parallel_replicate_degree", 1) or 1
    shard = keys.count(f"{prefix}data_parallel_shard_degree", -1, least=-1)
    # A shard degree of -1 takes all devices that the other degrees leave.
    dp = None if shard in (None, -1) else replicate * shard
    schedule_name = keys.get(f"{prefix}pipeline_parallel_schedule")
    schedule = schedule_name if isinstance(schedule_name, str) else "1F1B"
    ep = keys.count(f"{prefix}expert_parallel_degree", 1) or 1
    has_experts = ep > 1 or (sizes is not None and sizes.experts is not None)
    chunks, layers = _stages(keys, schedule, pp, sizes)
    tokens_of_step, steps = keys.count(f"{tokens}train_step", -1, least=-1), pp > 1
    count = keys.count(f"{prefix}num_pp_microbatches", 1) or 1
    batch = tokens_of_step // length if tokens_of_step and tokens_of_step > 0 else None
    if batch is None and dp is not None:
        batch = dp * (tokens_of_microbatch // length) * (count if steps else 1)
    # Types, and the ZeRO stage that gathering parameters again stands for.
    half = keys.word(
        "training.mixed_precision_param", ("bfloat16", "float32"), "bfloat16"
    )
    true = keys.word("training.dtype", ("bfloat16", "float32"), "float32") == "bfloat16"
    reshard = keys.word(f"{prefix}{RESHARD}", ("default", "always", "never"), "default")
    zero = 0 if shard == 1 and cp == 1 else 2 if reshard == "never" and pp == 1 else 3
    name = SCHEDULES.get(schedule, "1f1b") if pp > 1 else "1f1b"
    name = "interleaved" if chunks > 1 and name == "1f1b" else name
    # What the prices do not know is priced as something near, which a note says.
    notes = [] if schedule in SCHEDULES else [f"schedule {schedule}: priced as {name}"]
    if reshard == "always" and pp > 1:
        notes.append(f"{RESHARD} = always: priced as gathered once a step")
    notes += _conversion_notes(keys, model)
    compiled, parts = keys.switch("compile.enable"), keys.get("compile.components")
    if compiled and isinstance(parts, list) and "model" not in parts:
        compiled, notes = (
            False,
            [*notes, f"compile of {', '.join(parts)} alone: priced without"],
        )
    eager = keys.get("training.disable_cuda_graphs")
    captures = {True: "off", False: "iteration"}
    if has_experts and not eager:
        notes.append("CUDA graphs of a step with experts: priced without")
    return check_plan_words(
        LaunchPlan(
            dp=dp,
            tp=tp,
            pp=pp,
            cp=keys.count(f"{prefix}context_parallel_degree", 1) or 1,
            ep=ep,
            etp=1 if tp > 1 and has_experts else None,
            sp=tp == 1 or keys.switch(f"{prefix}enable_sequence_parallel", True),
            chunks=chunks,
            layers=layers,
            microbatch_size=tokens_of_microbatch // length,
            batch=batch,
            accumulation=count if batch is None and count > 1 else None,
            zero=zero,
            group=shard
            if replicate > 1 and shard not in (None, -1) and cp * shard > 1
            else None,
            recompute=keys.get("activation_checkpoint"),
            schedule=name,
            precision="bf16-true"
            if true
            else "32-true"
            if half == "float32"
            else "bf16-mixed",
            offload=_offload(keys, zero, notes),
            gradients="fp32",
            optimizer="adamw",
            sizes=sizes,
            length=length,
            unknown_model=str(keys.get("unknown_model") or ""),
            notes=tuple(notes),
            compile=compiled,
            cuda_graphs=None if pp > 1 or has_experts else captures.get(eager),
            lines=keys.word_lines(WORD_KEYS),
        ),
        keys.source,
    )


def _offload(keys: Keys, zero: int, notes: list[str]) -> str:
    """Return what lies in the host's memory; what no word says is noted."""
    if not keys.switch("training.enable_cpu_offload"):
        return NONE
    offload = fsdp_offload(zero)
    if offload is None:
        notes.append(
            "training.enable_cpu_offload: priced on the GPU, since parameters stay whole"
        )
    return offload or NONE


def _stages(
    keys: Keys, schedule: str, pp: int, sizes: DecoderSizes | None
) -> tuple[int, tuple[int, ...] | None]:
    """Return the stages of a rank and the layers of every stage: those listed, or torchtitan's own.

    Args:
        keys: The keys of the file.
        schedule: The schedule, as torchtitan calls it.
        pp: Pipeline ranks.
        sizes: Sizes of the model, if they are known.

    Raises:
        FormatError: If the listed stages are no multiple of the ranks.
    """
    if pp == 1:
        return 1, None
    listed = keys.get("parallelism.module_fqns_per_model_part")
    if isinstance(listed, list) and all(isinstance(part, list) for part in listed):
        if not listed or len(listed) % pp:
            message = f"{len(listed)} stages are no multiple of {pp} ranks"
            raise FormatError(
                f"{keys.source}: parallelism.module_fqns_per_model_part: {message}"
            )
        layers = tuple(
            sum(str(m).startswith("layers.") for m in part) for part in listed
        )
        return len(listed) // pp, layers
    chunks = 1 if schedule in ONE_STAGE else 2
    return chunks, None if sizes is None else cut_layers(sizes, pp * chunks, "ends")
