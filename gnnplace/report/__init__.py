"""The report room: tables, traces for Perfetto, a self-contained page."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.report.answer import Answer as Answer
    from gnnplace.report.answer import Column as Column
    from gnnplace.report.answer import Lines as Lines
    from gnnplace.report.answer import Table as Table
    from gnnplace.report.answer import TextTable as TextTable
    from gnnplace.report.answer import as_json as as_json
    from gnnplace.report.answer import as_markdown as as_markdown
    from gnnplace.report.answer import as_page as as_page
    from gnnplace.report.answer import as_terminal as as_terminal
    from gnnplace.report.answer import boxed as boxed
    from gnnplace.report.answer import html_parts as html_parts
    from gnnplace.report.answer import plain_lines as plain_lines
    from gnnplace.report.answer import table_data as table_data
    from gnnplace.report.answer import text_table as text_table
    from gnnplace.report.batches import batch_data as batch_data
    from gnnplace.report.batches import batch_lines as batch_lines
    from gnnplace.report.chakra import write_chakra as write_chakra
    from gnnplace.report.environment import caches as caches
    from gnnplace.report.environment import (
        describe_environment as describe_environment,
    )
    from gnnplace.report.explanations import advice_lines as advice_lines
    from gnnplace.report.explanations import difference_answer as difference_answer
    from gnnplace.report.explanations import explanation_answer as explanation_answer
    from gnnplace.report.fidelity import study_answer as study_answer
    from gnnplace.report.fidelity import write_study as write_study
    from gnnplace.report.fits import fit_answer as fit_answer
    from gnnplace.report.hybrid import hybrid_page as hybrid_page
    from gnnplace.report.hybrid import hybrid_plot as hybrid_plot
    from gnnplace.report.hybrid import hybrid_study_data as hybrid_study_data
    from gnnplace.report.hybrid import hybrid_study_lines as hybrid_study_lines
    from gnnplace.report.hybrid import hybrid_table as hybrid_table
    from gnnplace.report.launch import format_converted_lines as format_converted_lines
    from gnnplace.report.launch import launch_answer as launch_answer
    from gnnplace.report.launch import launch_lines as launch_lines
    from gnnplace.report.measurements import calibration_table as calibration_table
    from gnnplace.report.measurements import run_table as run_table
    from gnnplace.report.money import PlanCost as PlanCost
    from gnnplace.report.money import compute_cost as compute_cost
    from gnnplace.report.money import compute_plan_cost as compute_plan_cost
    from gnnplace.report.money import compute_plan_costs as compute_plan_costs
    from gnnplace.report.money import cost_lines as cost_lines
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
        launch_explanation_answer as launch_explanation_answer,
    )
    from gnnplace.report.plan_explanations import (
        plan_explanation_answer as plan_explanation_answer,
    )
    from gnnplace.report.plans import baseline_lines as baseline_lines
    from gnnplace.report.plans import difference_lines as difference_lines
    from gnnplace.report.plans import plan_lines as plan_lines
    from gnnplace.report.plans import plan_page as plan_page
    from gnnplace.report.plans import run_lines as run_lines
    from gnnplace.report.plans import write_plan_trace as write_plan_trace
    from gnnplace.report.priced import constant_lines as constant_lines
    from gnnplace.report.priced import describe_priced as describe_priced
    from gnnplace.report.rates import parse_token_count as parse_token_count
    from gnnplace.report.road import Road as Road
    from gnnplace.report.road import Walking as Walking
    from gnnplace.report.road import walk_road as walk_road
    from gnnplace.report.rows import Row as Row
    from gnnplace.report.rows import eager_line as eager_line
    from gnnplace.report.rows import make_row as make_row
    from gnnplace.report.rows import summary_lines as summary_lines
    from gnnplace.report.rows import with_best_bound as with_best_bound
    from gnnplace.report.sharding import draw_frontier as draw_frontier
    from gnnplace.report.sharding import frontier_answer as frontier_answer
    from gnnplace.report.sharding import goal_lines as goal_lines
    from gnnplace.report.sharding import split_answer as split_answer
    from gnnplace.report.sharding import split_data as split_data
    from gnnplace.report.side_by_side import next_line as next_line
    from gnnplace.report.side_by_side import side_by_side_lines as side_by_side_lines
    from gnnplace.report.side_by_side import trade_table as trade_table
    from gnnplace.report.tables import check_table as check_table
    from gnnplace.report.tables import comparison as comparison
    from gnnplace.report.tables import comparison_answer as comparison_answer
    from gnnplace.report.tables import find_moved_modules as find_moved_modules
    from gnnplace.report.tables import interval_answer as interval_answer
    from gnnplace.report.tables import interval_keys as interval_keys
    from gnnplace.report.tables import memory_lines as memory_lines
    from gnnplace.report.tables import placement_table as placement_table
    from gnnplace.report.tables import plan_table as plan_table
    from gnnplace.report.tables import simulation_answer as simulation_answer
    from gnnplace.report.tables import sizes_table as sizes_table
    from gnnplace.report.tables import write_table as write_table
    from gnnplace.report.timeline import Timeline as Timeline
    from gnnplace.report.timeline import from_execution as from_execution
    from gnnplace.report.timeline import from_simulation as from_simulation
    from gnnplace.report.trace import chrome_trace as chrome_trace
    from gnnplace.report.trace import write_trace as write_trace

__getattr__, __dir__ = lazy_names(__name__)
