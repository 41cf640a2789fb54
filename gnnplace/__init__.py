"""gnnplace: finds which device should run each operation, runs the answer, bounds the gap.

Whatever a command does is a function here. A name is imported when it is first used, so that
``import gnnplace``, and what needs no torch, stays quick.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace import lightning as lightning
    from gnnplace.bench import run_suite as run_suite
    from gnnplace.bench import summarise as summarise
    from gnnplace.costs import capture_for as capture_for
    from gnnplace.costs import is_problem_file as is_problem_file
    from gnnplace.costs import make_estimated_problem as make_estimated_problem
    from gnnplace.costs import measure_anew as measure_anew
    from gnnplace.costs import move_to_cluster as move_to_cluster
    from gnnplace.costs import profile_model as profile
    from gnnplace.costs import read_on_cluster as read_on_cluster
    from gnnplace.costs import read_or_profile as read_or_profile
    from gnnplace.costs import resolve_cluster as resolve_cluster
    from gnnplace.explaining import advise as advise
    from gnnplace.explaining import difference as difference
    from gnnplace.explaining import explain as explain
    from gnnplace.explaining import explain_launch_plan as explain_launch_plan
    from gnnplace.explaining import explain_plan as explain_plan
    from gnnplace.launch import convert_launch_file as convert_launch_file
    from gnnplace.launch import export_plan as export_plan
    from gnnplace.launch import find_launcher_of_file as find_launcher_of_file
    from gnnplace.launch import is_launch_file as is_launch_file
    from gnnplace.launch import price_launch_plan as price_launch_plan
    from gnnplace.launch import read_launch_file as read_launch_file
    from gnnplace.measurements import calibrate as calibrate
    from gnnplace.placers import Result as Result
    from gnnplace.placers import read_start as read_start
    from gnnplace.placers import space_with_start as space_with_start
    from gnnplace.placing import DEFAULT_BUDGET as DEFAULT_BUDGET
    from gnnplace.placing import ROSTER as ROSTER
    from gnnplace.placing import THROUGHPUT as THROUGHPUT
    from gnnplace.placing import TIME as TIME
    from gnnplace.placing import Failure as Failure
    from gnnplace.placing import PlaceOptions as PlaceOptions
    from gnnplace.placing import SizedModel as SizedModel
    from gnnplace.placing import check_budget as check_budget
    from gnnplace.placing import choose_microbatches as choose_microbatches
    from gnnplace.placing import compare as compare
    from gnnplace.placing import compare_intervals as compare_intervals
    from gnnplace.placing import is_warm as is_warm
    from gnnplace.placing import list_shown_placers as list_shown_placers
    from gnnplace.placing import make_placer as make_placer
    from gnnplace.placing import make_placer_for as make_placer_for
    from gnnplace.placing import place as place
    from gnnplace.placing import placer_names as placer_names
    from gnnplace.placing import placer_options as placer_options
    from gnnplace.placing import warm as warm
    from gnnplace.planning import JointPlan as JointPlan
    from gnnplace.planning import ShardPlan as ShardPlan
    from gnnplace.planning import compare_plans as compare_plans
    from gnnplace.planning import make_split_plan as make_split_plan
    from gnnplace.planning import plan_model as plan
    from gnnplace.planning import plan_shard as plan_shard
    from gnnplace.planning import price_plans as price_plans
    from gnnplace.planning import read_plan as read_plan
    from gnnplace.planning import read_shard_plan as read_shard_plan
    from gnnplace.planning import shard_model as shard
    from gnnplace.planning import study_hybrid as study_hybrid
    from gnnplace.plans import Plan as Plan
    from gnnplace.problem import Constraints as Constraints
    from gnnplace.problem import Placement as Placement
    from gnnplace.problem import Problem as Problem
    from gnnplace.problem import apply_constraints as apply_constraints
    from gnnplace.problem import as_constraints as as_constraints
    from gnnplace.problem import check_headroom as check_headroom
    from gnnplace.problem import convert as convert
    from gnnplace.problem import count_placed_microbatches as count_placed_microbatches
    from gnnplace.problem import from_networkx as from_networkx
    from gnnplace.problem import from_pyg as from_pyg
    from gnnplace.problem import limit_memory as limit_memory
    from gnnplace.problem import read_constraints as read_constraints
    from gnnplace.problem import read_placement as read_placement
    from gnnplace.problem import read_placement_for as read_placement_for
    from gnnplace.problem import read_problem as read_problem
    from gnnplace.problem import to_pyg as to_pyg
    from gnnplace.problem import with_headroom as with_headroom
    from gnnplace.problem import with_microbatches as with_microbatches
    from gnnplace.problem import write_placement as write_placement
    from gnnplace.problem import write_problem as write_problem
    from gnnplace.report import caches as caches
    from gnnplace.report import collect_environment as environment
    from gnnplace.report import walk_road as walk_road
    from gnnplace.report import write_page as write_page
    from gnnplace.report import write_report as write_report
    from gnnplace.run.device_maps import check_device_map as check_device_map
    from gnnplace.run.device_maps import device_map as device_map
    from gnnplace.run.measuring import Executed as Executed
    from gnnplace.run.measuring import check_fidelity as check_fidelity
    from gnnplace.run.measuring import dry_run_placement as dry_run
    from gnnplace.run.measuring import eager_times as eager_times
    from gnnplace.run.measuring import execute_placement as execute
    from gnnplace.run.placed import ExecutionOptions as ExecutionOptions
    from gnnplace.run.placed import RecordOptions as RecordOptions
    from gnnplace.run.placed import execution_mode as execution_mode
    from gnnplace.run.planned import run_plan as run_plan
    from gnnplace.run.training import TrainingStep as TrainingStep
    from gnnplace.run.training import compile as compile
    from gnnplace.sharding import MeshMachine as MeshMachine
    from gnnplace.sharding import SplitGoal as SplitGoal
    from gnnplace.sharding import shard_for as shard_for
    from gnnplace.sharding import shard_frontier as shard_frontier
    from gnnplace.sharding import shard_network as shard_network
    from gnnplace.sharding import shard_tables as shard_tables
    from gnnplace.simulation import simulate as simulate
    from gnnplace.tracing import CaptureOptions as CaptureOptions
    from gnnplace.tracing import capture_model as capture
    from gnnplace.tracing import experts as experts
    from gnnplace.tracing import say_batch as say_batch
    from gnnplace.train import build_data as build_data
    from gnnplace.train import collect_data as collect_data
    from gnnplace.train import verify as verify_data


__getattr__, __dir__ = lazy_names(__name__)
