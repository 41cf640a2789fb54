"""The joint plan: how a model is trained on a cluster; searched, checked, run.

`docs/plan.md` says what is searched, how, and what is proven.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.plans.answers import (
        find_baselines,
        find_plans,
        make_plan,
        price_given_plan,
    )
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
        find_decoder,
        from_config,
        with_adapters,
    )
    from gnnplace.plans.decoders.named import (
        NamedModel,
        build_named_chain,
        capture_file_chain,
        find_named,
        find_named_chain,
        make_sized_model,
        price_named,
    )
    from gnnplace.plans.decoders.setting import (
        HALVES,
        PricingSetting,
        find_memory_limit,
        make_pricing_setting,
        roofline_line,
    )
    from gnnplace.plans.decoders.stages import cut_layers
    from gnnplace.plans.given import (
        ANY_SPLIT,
        check_spec,
        cut_evenly,
        draft_plan,
        draft_spec,
        find_layer_bounds,
        read_orders,
        split_by_spec,
        with_recomputation,
    )
    from gnnplace.plans.handover import find_op_placement
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
        find_preset,
        find_published_gain,
        make_token_preset,
        make_training,
    )
    from gnnplace.plans.hybrid.gradients import (
        time_gradient_reduction as time_gradient_reduction,
    )
    from gnnplace.plans.hybrid.groups import plan_groups
    from gnnplace.plans.hybrid.splits import SplitRow
    from gnnplace.plans.hybrid.study import HybridOptions, HybridStudy, study_groups
    from gnnplace.plans.job import (
        CAPTURING,
        Progress,
        SearchOptions,
        TrainingJob,
        select_modes,
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
        time_rows,
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
    from gnnplace.plans.order.rows import as_csv, iterate_passes, with_messages
    from gnnplace.plans.order.rows import parse_rows as parse_rows
    from gnnplace.plans.order.rows import words as action_words
    from gnnplace.plans.order.timing import Timing, time_pipeline
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
        find_layer,
    )
    from gnnplace.plans.reading import check_cluster, check_words, is_plan, read_plan
    from gnnplace.plans.reading import check_plan as check_plan
    from gnnplace.plans.search.draft import (
        Draft,
        Priced,
        compute_rank_ends,
        find_fullest_memory,
        pipeline,
        realize_draft,
    )
    from gnnplace.plans.search.drafts import BASELINES
    from gnnplace.plans.search.framework_pricing import make_pricer
    from gnnplace.plans.search.search import under as with_schedule
    from gnnplace.plans.search.space import count_server_devices
    from gnnplace.plans.search.splits import with_splits
    from gnnplace.plans.search.stage import Pricer, Stage, StageCost
    from gnnplace.plans.segments.chain import (
        WEIGHTS,
        Chain,
        SplitChoice,
        is_captured,
        list_divisors,
    )
    from gnnplace.plans.segments.chain import join_runs as join_runs
    from gnnplace.plans.segments.chain import layer_numbers as layer_numbers
    from gnnplace.plans.segments.chains import (
        TYPES,
        capture_chain,
        compute_fingerprint,
        count_examples,
        describe_inputs,
        move_chain_to_cluster,
        without_dropped_attention,
    )
    from gnnplace.plans.segments.chains import capture_layers as capture_layers
    from gnnplace.plans.segments.chains import cast_input as cast_input
    from gnnplace.plans.segments.chains import check_inputs as check_inputs
    from gnnplace.plans.segments.chains import make_plan_inputs as make_plan_inputs
    from gnnplace.plans.segments.chains import retype_model as retype_model
    from gnnplace.plans.segments.chains import with_batch as with_batch
    from gnnplace.plans.segments.counts import Counts as Counts
    from gnnplace.plans.segments.counts import find_counts as find_counts
    from gnnplace.plans.segments.cuts import Cuts as Cuts
    from gnnplace.plans.segments.cuts import attention_runs as attention_runs
    from gnnplace.plans.segments.cuts import find_cuts
    from gnnplace.plans.segments.parts import Part as CallPart
    from gnnplace.plans.segments.placements import WHOLE_WORDS as WHOLE_WORDS
    from gnnplace.plans.segments.placements import border_layout as border_layout
    from gnnplace.plans.segments.placements import check_placements as check_placements
    from gnnplace.plans.segments.placements import check_stages as check_stages
    from gnnplace.plans.segments.placements import format_placements
    from gnnplace.plans.segments.placements import make_home_layout as make_home_layout
    from gnnplace.plans.segments.placements import (
        parse_configuration as parse_configuration,
    )
    from gnnplace.plans.segments.placements import parse_place as parse_place
    from gnnplace.plans.segments.pricing import ModelCosts
    from gnnplace.plans.segments.recording import MIXED as MIXED
    from gnnplace.plans.segments.recording import run_in_precision as run_in_precision
    from gnnplace.plans.segments.sized import with_framework
    from gnnplace.plans.segments.splits import ShardMachine
    from gnnplace.plans.spec import (
        RECOMPUTED_MODULES,
        WORDS,
        Layers,
        PlanSpec,
        PlanTable,
        format_layers,
        make_spec_table,
        parse_spec,
        read_plan_table,
    )
    from gnnplace.plans.spec_answers import (
        PlanAnswer,
        check_framework,
        device_peaks,
        find_captured_launches,
        list_own_modules,
        make_plan_answer,
        price,
        price_spec,
    )
    from gnnplace.plans.spec_groups import SpecSpace, iterate_groups, list_zero_stages
    from gnnplace.plans.spec_search import FoundSpec, FoundSpecs, search_specs

__all__ = [
    "ANY_SPLIT",
    "BASELINES",
    "CAPTURING",
    "CONVERGENCE_SOURCE",
    "FORWARD",
    "FORWARD_PASS",
    "FULL",
    "FULL_PASS",
    "HALF_BITS",
    "HALVES",
    "INPUT",
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
    "SearchOptions",
    "ShardMachine",
    "SpecSpace",
    "SplitChoice",
    "SplitRow",
    "Stage",
    "StageCost",
    "StageEntry",
    "Timing",
    "TradeEntry",
    "Training",
    "TrainingJob",
    "TrialEntry",
    "action_words",
    "advice_sentence",
    "as_csv",
    "attention_runs",
    "best_data_parallel",
    "border_layout",
    "build_named_chain",
    "capture_chain",
    "capture_file_chain",
    "capture_layers",
    "cast_input",
    "check_cluster",
    "check_framework",
    "check_inputs",
    "check_placements",
    "check_plan",
    "check_spec",
    "check_stages",
    "check_words",
    "compute_fingerprint",
    "compute_rank_ends",
    "count_examples",
    "count_server_devices",
    "cut_evenly",
    "cut_layers",
    "describe_inputs",
    "device_peaks",
    "draft_plan",
    "draft_spec",
    "find_baselines",
    "find_captured_launches",
    "find_counts",
    "find_cuts",
    "find_decoder",
    "find_fewest",
    "find_fullest_memory",
    "find_layer",
    "find_layer_bounds",
    "find_memory_limit",
    "find_named",
    "find_named_chain",
    "find_obeying",
    "find_op_placement",
    "find_plans",
    "find_preset",
    "find_published_gain",
    "format_layers",
    "format_placements",
    "from_config",
    "gain_at_scale",
    "is_captured",
    "is_plan",
    "iterate_groups",
    "iterate_passes",
    "join_runs",
    "layer_numbers",
    "list_divisors",
    "list_own_modules",
    "list_zero_stages",
    "make_home_layout",
    "make_plan",
    "make_plan_answer",
    "make_plan_inputs",
    "make_pricer",
    "make_pricing_setting",
    "make_sized_model",
    "make_spec_table",
    "make_token_preset",
    "make_training",
    "move_chain_to_cluster",
    "one_by_one",
    "parse_adapters",
    "parse_configuration",
    "parse_place",
    "parse_rows",
    "parse_spec",
    "pipeline",
    "plan_batches",
    "plan_groups",
    "price",
    "price_given_plan",
    "price_named",
    "price_spec",
    "read_orders",
    "read_plan",
    "read_plan_table",
    "realize_draft",
    "retype_model",
    "roofline_line",
    "run_in_precision",
    "search_specs",
    "select_modes",
    "split_by_spec",
    "study_groups",
    "time_gradient_reduction",
    "time_pipeline",
    "time_rows",
    "with_adapters",
    "with_batch",
    "with_framework",
    "with_messages",
    "with_recomputation",
    "with_schedule",
    "with_splits",
    "without_dropped_attention",
]

__getattr__, __dir__ = lazy_names(__name__)
