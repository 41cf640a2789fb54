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
        chain_of_file,
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
        roofline_line,
        setting_of,
    )
    from gnnplace.plans.decoders.stages import layers_of
    from gnnplace.plans.given import (
        ANY_SPLIT,
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
    from gnnplace.plans.hybrid.advice import (
        ReplicaAdvice,
        best_data_parallel,
        gain_at_scale,
    )
    from gnnplace.plans.hybrid.advice import sentence as advice_sentence
    from gnnplace.plans.hybrid.batches import BatchPlan, plan_batches
    from gnnplace.plans.hybrid.convergence import SOURCE as CONVERGENCE_SOURCE
    from gnnplace.plans.hybrid.convergence import (
        ConvergenceOptions,
        Training,
        preset_of,
        published_gain,
        token_preset,
        training_of,
    )
    from gnnplace.plans.hybrid.gradients import reduced as with_gradients_reduced
    from gnnplace.plans.hybrid.groups import grouped_plan
    from gnnplace.plans.hybrid.splits import SplitRow
    from gnnplace.plans.hybrid.study import HybridOptions, HybridStudy, study_groups
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
    from gnnplace.plans.mesh import Mesh, MeshFabric
    from gnnplace.plans.obeying import find_fewest, find_obeying
    from gnnplace.plans.order.names import ZBV
    from gnnplace.plans.order.orders import FORWARD as FORWARD
    from gnnplace.plans.order.orders import FORWARD as FORWARD_PASS
    from gnnplace.plans.order.orders import FULL as FULL
    from gnnplace.plans.order.orders import FULL as FULL_PASS
    from gnnplace.plans.order.orders import INPUT as INPUT
    from gnnplace.plans.order.orders import (
        SEARCHED,
        ActionRows,
        Orders,
        Pipeline,
        one_by_one,
        seconds_of_rows,
    )
    from gnnplace.plans.order.orders import WEIGHT as WEIGHT
    from gnnplace.plans.order.orders import WEIGHT as WEIGHT_PASS
    from gnnplace.plans.order.orders import Action as Action
    from gnnplace.plans.order.rows import MESSAGES as MESSAGES
    from gnnplace.plans.order.rows import PASSES as PASSES
    from gnnplace.plans.order.rows import PASSES as PASS_KINDS
    from gnnplace.plans.order.rows import RECV_B as RECV_B
    from gnnplace.plans.order.rows import RECV_F as RECV_F
    from gnnplace.plans.order.rows import SEND_B as SEND_B
    from gnnplace.plans.order.rows import SEND_F as SEND_F
    from gnnplace.plans.order.rows import as_csv, passes_in, with_messages
    from gnnplace.plans.order.rows import parsed as parsed_actions
    from gnnplace.plans.order.rows import words as action_words
    from gnnplace.plans.order.timing import Timing, timed
    from gnnplace.plans.plan import (
        OWN,
        AlternativeEntry,
        InputEntry,
        MemoryEntry,
        MemoryParts,
        OpPlacement,
        Plan,
        PlanFile,
        StageEntry,
        TradeEntry,
        TrialEntry,
        layer_of,
    )
    from gnnplace.plans.reading import check_cluster, check_words, is_plan, read_plan
    from gnnplace.plans.reading import check_plan as check_plan
    from gnnplace.plans.search.draft import (
        Draft,
        Priced,
        ends_of,
        fullest_parts,
        pipeline,
        realized,
    )
    from gnnplace.plans.search.drafts import BASELINES
    from gnnplace.plans.search.framework_pricing import pricer_of
    from gnnplace.plans.search.search import under as with_schedule
    from gnnplace.plans.search.space import devices_of_server
    from gnnplace.plans.search.splits import with_splits
    from gnnplace.plans.search.stage import Pricer, Stage, StageCost
    from gnnplace.plans.segments.chain import (
        WEIGHTS,
        Chain,
        SplitChoice,
        divisors_of,
        is_captured,
    )
    from gnnplace.plans.segments.chain import joined_runs as joined_runs
    from gnnplace.plans.segments.chain import layer_numbers as layer_numbers
    from gnnplace.plans.segments.chains import (
        TYPES,
        batch_of,
        chain_of,
        fingerprint,
        on_cluster,
        told_inputs,
        without_dropped_attention,
    )
    from gnnplace.plans.segments.chains import as_type as as_type
    from gnnplace.plans.segments.chains import capture_layers as capture_layers
    from gnnplace.plans.segments.chains import check_inputs as check_inputs
    from gnnplace.plans.segments.chains import inputs_of as inputs_of
    from gnnplace.plans.segments.chains import retyped as retyped
    from gnnplace.plans.segments.chains import with_batch as with_batch
    from gnnplace.plans.segments.counts import Counts as Counts
    from gnnplace.plans.segments.counts import counts_of as counts_of
    from gnnplace.plans.segments.cuts import Cuts as Cuts
    from gnnplace.plans.segments.cuts import attention_runs as attention_runs
    from gnnplace.plans.segments.cuts import cuts_of
    from gnnplace.plans.segments.parts import Part as CallPart
    from gnnplace.plans.segments.placements import WHOLE_WORDS as WHOLE_WORDS
    from gnnplace.plans.segments.placements import Layouts as Layouts
    from gnnplace.plans.segments.placements import border_layout as border_layout
    from gnnplace.plans.segments.placements import check_placements as check_placements
    from gnnplace.plans.segments.placements import check_stages as check_stages
    from gnnplace.plans.segments.placements import home_of as home_of
    from gnnplace.plans.segments.placements import layouts_of as layouts_of
    from gnnplace.plans.segments.placements import place_of as place_of
    from gnnplace.plans.segments.placements import placements_of
    from gnnplace.plans.segments.pricing import ModelCosts
    from gnnplace.plans.segments.recording import MIXED as MIXED
    from gnnplace.plans.segments.recording import precision_of as precision_of
    from gnnplace.plans.segments.sized import with_framework
    from gnnplace.plans.segments.splits import ShardMachine
    from gnnplace.plans.segments.stage_calls import ATTENTION as ATTENTION
    from gnnplace.plans.segments.stage_calls import StageCalls as StageCalls
    from gnnplace.plans.segments.stage_calls import drawn_alike as drawn_alike
    from gnnplace.plans.segments.stage_calls import moved_to as moved_to
    from gnnplace.plans.segments.stage_calls import numbered_draws as numbered_draws
    from gnnplace.plans.segments.stage_calls import pieces_of as pieces_of
    from gnnplace.plans.segments.stage_calls import seed_of as seed_of
    from gnnplace.plans.segments.variants import (
        ScaledFabric,
        scaled_floor,
        with_launches,
        without_launches,
    )
    from gnnplace.plans.spec import (
        RECOMPUTED_MODULES,
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
        own_modules,
        price,
        priced_spec,
    )
    from gnnplace.plans.spec_groups import SpecSpace, groups_of, zero_stages_of
    from gnnplace.plans.spec_search import FoundSpec, FoundSpecs, search_specs

__all__ = [
    "ANY_SPLIT",
    "ATTENTION",
    "BASELINES",
    "CAPTURING",
    "CONVERGENCE_SOURCE",
    "FEWEST",
    "FORWARD",
    "FORWARD_PASS",
    "FULL",
    "FULL_PASS",
    "HALF_BITS",
    "HALVES",
    "INPUT",
    "LEANEST",
    "MAX_RANK",
    "MESSAGES",
    "MIXED",
    "OWN",
    "PASSES",
    "PASS_KINDS",
    "QUANTIZED_BITS",
    "READ_NAMES",
    "RECOMPUTED_MODULES",
    "RECV_B",
    "RECV_F",
    "SEARCHED",
    "SEND_B",
    "SEND_F",
    "TARGETS",
    "TIME",
    "TYPES",
    "WEIGHT",
    "WEIGHTS",
    "WEIGHT_PASS",
    "WHOLE_WORDS",
    "WORDS",
    "ZBV",
    "Action",
    "ActionRows",
    "Adapters",
    "AlternativeEntry",
    "BatchPlan",
    "CallPart",
    "Chain",
    "ConvergenceOptions",
    "Counts",
    "Cuts",
    "DecoderSizes",
    "Draft",
    "ExpertLayers",
    "FoundSpec",
    "FoundSpecs",
    "HybridOptions",
    "HybridStudy",
    "InputEntry",
    "LatentAttention",
    "Layers",
    "Layouts",
    "MemoryEntry",
    "MemoryParts",
    "Mesh",
    "MeshFabric",
    "ModelCosts",
    "NamedModel",
    "OpPlacement",
    "Orders",
    "Pipeline",
    "Plan",
    "PlanAnswer",
    "PlanFile",
    "PlanSpec",
    "PlanTable",
    "Priced",
    "Pricer",
    "PricingSetting",
    "Progress",
    "ReplicaAdvice",
    "ScaledFabric",
    "SearchOptions",
    "ShardMachine",
    "SpecSpace",
    "SplitChoice",
    "SplitRow",
    "Stage",
    "StageCalls",
    "StageCost",
    "StageEntry",
    "Timing",
    "TradeEntry",
    "Training",
    "TrainingJob",
    "TrialEntry",
    "action_words",
    "advice_sentence",
    "answer_of",
    "as_csv",
    "as_type",
    "attention_runs",
    "batch_of",
    "best_data_parallel",
    "border_layout",
    "capture_layers",
    "captured_launches",
    "chain_of",
    "chain_of_file",
    "chain_on",
    "check_cluster",
    "check_framework",
    "check_inputs",
    "check_placements",
    "check_plan",
    "check_spec",
    "check_stages",
    "check_words",
    "counts_of",
    "cuts_of",
    "decoder_of",
    "device_peaks",
    "devices_of_server",
    "divisors_of",
    "draft_of_plan",
    "draft_of_spec",
    "drawn_alike",
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
    "gain_at_scale",
    "given_plan",
    "grouped_plan",
    "groups_of",
    "handed_over",
    "home_of",
    "inputs_of",
    "is_captured",
    "is_plan",
    "joined_runs",
    "layer_bounds",
    "layer_numbers",
    "layer_of",
    "layers_of",
    "layouts_of",
    "memory_limit_of",
    "moved_to",
    "named_chain",
    "numbered_draws",
    "on_cluster",
    "one_by_one",
    "only_modes",
    "orders_in",
    "own_modules",
    "parse_adapters",
    "parse_spec",
    "parsed_actions",
    "passes_in",
    "pieces_of",
    "pipeline",
    "place_of",
    "placements_of",
    "plan_batches",
    "plan_of",
    "precision_of",
    "preset_of",
    "price",
    "price_named",
    "priced_spec",
    "pricer_of",
    "published_gain",
    "read_plan",
    "read_plan_table",
    "realized",
    "recomputing",
    "retyped",
    "roofline_line",
    "scaled_floor",
    "search_specs",
    "seconds_of_rows",
    "seed_of",
    "setting_of",
    "sized_model",
    "split_of_spec",
    "study_groups",
    "table_of_spec",
    "timed",
    "token_preset",
    "told_inputs",
    "training_of",
    "with_adapters",
    "with_batch",
    "with_framework",
    "with_gradients_reduced",
    "with_launches",
    "with_messages",
    "with_schedule",
    "with_splits",
    "without_dropped_attention",
    "without_launches",
    "zero_stages_of",
]

__getattr__, __dir__ = lazy_names(__name__)
