"""The joint plan: how a model is trained on a cluster; searched, checked, run.

`docs/plan.md` says what is searched, how, and what is proven.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.plans.answers import find_baselines, find_plans, given_plan, plan_of
    from gnnplace.plans.decoders.adapters import (
        HALF_BITS,
        MAX_RANK,
        QUANTIZED_BITS,
        TARGETS,
        Adapters,
        parse_adapters,
    )
    from gnnplace.plans.decoders.decoder import (
        DecoderSizes,
        ExpertLayers,
        LatentAttention,
        decoder_of,
        from_config,
        with_adapters,
    )
    from gnnplace.plans.decoders.named import (
        NamedModel,
        chain_on,
        find_named,
        named_chain,
        price_named,
        sized_model,
    )
    from gnnplace.plans.decoders.setting import (
        HALVES,
        PricingSetting,
        memory_limit_of,
        setting_of,
    )
    from gnnplace.plans.decoders.stages import layers_of
    from gnnplace.plans.given import (
        ANY_SPLIT,
        chain_of_file,
        check_spec,
        draft_of_plan,
        draft_of_spec,
        even_bounds,
        layer_bounds,
        orders_in,
        recomputing,
        split_of_spec,
    )
    from gnnplace.plans.handover import handed_over
    from gnnplace.plans.hybrid.batches import BatchPlan, plan_batches
    from gnnplace.plans.hybrid.convergence import (
        ConvergenceOptions,
        Training,
        preset_of,
        token_preset,
        training_of,
    )
    from gnnplace.plans.job import (
        CAPTURING,
        FEWEST,
        LEANEST,
        TIME,
        Progress,
        SearchOptions,
        TrainingJob,
        only_modes,
    )
    from gnnplace.plans.launchers import READ_NAMES
    from gnnplace.plans.mesh import MeshFabric
    from gnnplace.plans.obeying import find_fewest, find_obeying
    from gnnplace.plans.order.orders import (
        SEARCHED,
        ActionRows,
        Orders,
        one_by_one,
        seconds_of_rows,
    )
    from gnnplace.plans.order.rows import as_csv, with_messages
    from gnnplace.plans.order.rows import parsed as parsed_actions
    from gnnplace.plans.order.rows import words as action_words
    from gnnplace.plans.plan import (
        OWN,
        AlternativeEntry,
        InputEntry,
        MemoryEntry,
        MemoryParts,
        Plan,
        PlanFile,
        StageEntry,
        TradeEntry,
        TrialEntry,
        layer_of,
    )
    from gnnplace.plans.reading import check_words, is_plan, read_plan
    from gnnplace.plans.search.draft import (
        Draft,
        Priced,
        ends_of,
        fullest_parts,
        pipeline,
        realized,
    )
    from gnnplace.plans.search.framework_pricing import pricer_of
    from gnnplace.plans.search.search import under as with_schedule
    from gnnplace.plans.search.space import devices_of_server
    from gnnplace.plans.search.splits import with_splits
    from gnnplace.plans.search.stage import Pricer, Stage, StageCost
    from gnnplace.plans.segments.chain import WEIGHTS, Chain, SplitChoice
    from gnnplace.plans.segments.chains import (
        TYPES,
        batch_of,
        chain_of,
        fingerprint,
        told_inputs,
        without_dropped_attention,
    )
    from gnnplace.plans.segments.cuts import cuts_of
    from gnnplace.plans.segments.placements import placements_of
    from gnnplace.plans.segments.pricing import ModelCosts
    from gnnplace.plans.segments.sized import with_framework
    from gnnplace.plans.spec import (
        WORDS,
        Layers,
        PlanSpec,
        PlanTable,
        format_layers,
        parse_spec,
        read_plan_table,
        table_of_spec,
    )
    from gnnplace.plans.spec_answers import (
        PlanAnswer,
        answer_of,
        captured_launches,
        check_framework,
        device_peaks,
        price,
        priced_spec,
    )
    from gnnplace.plans.spec_groups import SpecSpace, groups_of, zero_stages_of
    from gnnplace.plans.spec_search import FoundSpec, FoundSpecs, search_specs

__all__ = [
    "ANY_SPLIT",
    "CAPTURING",
    "FEWEST",
    "HALF_BITS",
    "HALVES",
    "LEANEST",
    "MAX_RANK",
    "OWN",
    "QUANTIZED_BITS",
    "READ_NAMES",
    "SEARCHED",
    "TARGETS",
    "TIME",
    "TYPES",
    "WEIGHTS",
    "WORDS",
    "ActionRows",
    "Adapters",
    "AlternativeEntry",
    "BatchPlan",
    "Chain",
    "ConvergenceOptions",
    "DecoderSizes",
    "Draft",
    "ExpertLayers",
    "FoundSpec",
    "FoundSpecs",
    "InputEntry",
    "LatentAttention",
    "Layers",
    "MemoryEntry",
    "MemoryParts",
    "MeshFabric",
    "ModelCosts",
    "NamedModel",
    "Orders",
    "Plan",
    "PlanAnswer",
    "PlanFile",
    "PlanSpec",
    "PlanTable",
    "Priced",
    "Pricer",
    "PricingSetting",
    "Progress",
    "SearchOptions",
    "SpecSpace",
    "SplitChoice",
    "Stage",
    "StageCost",
    "StageEntry",
    "TradeEntry",
    "Training",
    "TrainingJob",
    "TrialEntry",
    "action_words",
    "answer_of",
    "as_csv",
    "batch_of",
    "captured_launches",
    "chain_of",
    "chain_of_file",
    "chain_on",
    "check_framework",
    "check_spec",
    "check_words",
    "cuts_of",
    "decoder_of",
    "device_peaks",
    "devices_of_server",
    "draft_of_plan",
    "draft_of_spec",
    "ends_of",
    "even_bounds",
    "find_baselines",
    "find_fewest",
    "find_named",
    "find_obeying",
    "find_plans",
    "fingerprint",
    "format_layers",
    "from_config",
    "fullest_parts",
    "given_plan",
    "groups_of",
    "handed_over",
    "is_plan",
    "layer_bounds",
    "layer_of",
    "layers_of",
    "memory_limit_of",
    "named_chain",
    "one_by_one",
    "only_modes",
    "orders_in",
    "parse_adapters",
    "parse_spec",
    "parsed_actions",
    "pipeline",
    "placements_of",
    "plan_batches",
    "plan_of",
    "preset_of",
    "price",
    "price_named",
    "priced_spec",
    "pricer_of",
    "read_plan",
    "read_plan_table",
    "realized",
    "recomputing",
    "search_specs",
    "seconds_of_rows",
    "setting_of",
    "sized_model",
    "split_of_spec",
    "table_of_spec",
    "token_preset",
    "told_inputs",
    "training_of",
    "with_adapters",
    "with_framework",
    "with_messages",
    "with_schedule",
    "with_splits",
    "without_dropped_attention",
    "zero_stages_of",
]

__getattr__, __dir__ = lazy_names(__name__)
