"""The report room: tables, traces for Perfetto, a self-contained page."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.report.batches import batch_data as batch_data
    from gnnplace.report.batches import batch_lines as batch_lines
    from gnnplace.report.chakra import write_chakra as write_chakra
    from gnnplace.report.environment import caches as caches
    from gnnplace.report.environment import (
        describe_environment as describe_environment,
    )
    from gnnplace.report.explanations import advice_lines as advice_lines
    from gnnplace.report.explanations import difference_data as difference_data
    from gnnplace.report.explanations import difference_parts as difference_parts
    from gnnplace.report.explanations import explanation_data as explanation_data
    from gnnplace.report.explanations import explanation_parts as explanation_parts
    from gnnplace.report.fidelity import study_data as study_data
    from gnnplace.report.fidelity import study_lines as study_lines
    from gnnplace.report.fidelity import study_table as study_table
    from gnnplace.report.fidelity import write_study as write_study
    from gnnplace.report.fits import fit_data as fit_data
    from gnnplace.report.fits import fit_lines as fit_lines
    from gnnplace.report.html import Html as Html
    from gnnplace.report.html import heading as heading
    from gnnplace.report.html import table as table
    from gnnplace.report.hybrid import hybrid_page as hybrid_page
    from gnnplace.report.hybrid import hybrid_plot as hybrid_plot
    from gnnplace.report.hybrid import hybrid_study_data as hybrid_study_data
    from gnnplace.report.hybrid import hybrid_study_lines as hybrid_study_lines
    from gnnplace.report.hybrid import hybrid_table as hybrid_table
    from gnnplace.report.launch import converted_lines as converted_lines
    from gnnplace.report.launch import launch_answer_data as launch_answer_data
    from gnnplace.report.launch import launch_answer_lines as launch_answer_lines
    from gnnplace.report.launch import launch_lines as launch_lines
    from gnnplace.report.measurements import calibration_table as calibration_table
    from gnnplace.report.measurements import runs_table as runs_table
    from gnnplace.report.money import PlanCost as PlanCost
    from gnnplace.report.money import compute_cost as compute_cost
    from gnnplace.report.money import cost_lines as cost_lines
    from gnnplace.report.money import cost_of_plan as cost_of_plan
    from gnnplace.report.money import costs_of_plans as costs_of_plans
    from gnnplace.report.money import machine_lines as machine_lines
    from gnnplace.report.money import rank_machines as rank_machines
    from gnnplace.report.money import read_prices as read_prices
    from gnnplace.report.pictures import Axis as Axis
    from gnnplace.report.pictures import Picture as Picture
    from gnnplace.report.pictures import Series as Series
    from gnnplace.report.pictures import chart as chart
    from gnnplace.report.pictures import check_drawable as check_drawable
    from gnnplace.report.pictures import svg as svg
    from gnnplace.report.pictures import write_picture as write_picture
    from gnnplace.report.placements import write_page as write_page
    from gnnplace.report.placements import write_placements as write_placements
    from gnnplace.report.placements import write_report as write_report
    from gnnplace.report.plan_explanations import (
        launch_explanation_data as launch_explanation_data,
    )
    from gnnplace.report.plan_explanations import (
        launch_explanation_lines as launch_explanation_lines,
    )
    from gnnplace.report.plan_explanations import (
        plan_explanation_data as plan_explanation_data,
    )
    from gnnplace.report.plan_explanations import (
        plan_explanation_lines as plan_explanation_lines,
    )
    from gnnplace.report.plans import baseline_lines as baseline_lines
    from gnnplace.report.plans import difference_lines as difference_lines
    from gnnplace.report.plans import plan_lines as plan_lines
    from gnnplace.report.plans import plan_page as plan_page
    from gnnplace.report.plans import run_lines as run_lines
    from gnnplace.report.plans import write_plan_trace as write_plan_trace
    from gnnplace.report.priced import constant_lines as constant_lines
    from gnnplace.report.priced import priced_lines as priced_lines
    from gnnplace.report.rates import token_count as token_count
    from gnnplace.report.road import Road as Road
    from gnnplace.report.road import Walking as Walking
    from gnnplace.report.road import walk_road as walk_road
    from gnnplace.report.rows import Row as Row
    from gnnplace.report.rows import eager_line as eager_line
    from gnnplace.report.rows import make_row as make_row
    from gnnplace.report.rows import summary_lines as summary_lines
    from gnnplace.report.rows import with_best_bound as with_best_bound
    from gnnplace.report.sharding import draw_frontier as draw_frontier
    from gnnplace.report.sharding import frontier_lines as frontier_lines
    from gnnplace.report.sharding import frontier_page as frontier_page
    from gnnplace.report.sharding import goal_lines as goal_lines
    from gnnplace.report.sharding import split_data as split_data
    from gnnplace.report.sharding import split_lines as split_lines
    from gnnplace.report.sharding import split_page as split_page
    from gnnplace.report.side_by_side import next_line as next_line
    from gnnplace.report.side_by_side import side_by_side_lines as side_by_side_lines
    from gnnplace.report.side_by_side import trade_lines as trade_lines
    from gnnplace.report.tables import check_table as check_table
    from gnnplace.report.tables import comparison_table as comparison_table
    from gnnplace.report.tables import interval_keys as interval_keys
    from gnnplace.report.tables import interval_row as interval_row
    from gnnplace.report.tables import interval_table as interval_table
    from gnnplace.report.tables import memory_lines as memory_lines
    from gnnplace.report.tables import moved_between as moved_between
    from gnnplace.report.tables import placement_rows as placement_rows
    from gnnplace.report.tables import plan_rows as plan_rows
    from gnnplace.report.tables import simulation_table as simulation_table
    from gnnplace.report.tables import sizes_table as sizes_table
    from gnnplace.report.tables import write_table as write_table
    from gnnplace.report.timeline import Timeline as Timeline
    from gnnplace.report.timeline import from_execution as from_execution
    from gnnplace.report.timeline import from_simulation as from_simulation
    from gnnplace.report.trace import chrome_trace as chrome_trace
    from gnnplace.report.trace import write_trace as write_trace

__getattr__, __dir__ = lazy_names(__name__)
