"""The report room: tables, traces for Perfetto, a self-contained page.

`describe` returns the `Answer` of any result, by its type; `as_terminal`, `as_json` and
`write_answer` render it. Bench builds tables and pictures of its own.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.report.answer import Answer as Answer
    from gnnplace.report.answer import TextTable as TextTable
    from gnnplace.report.answer import as_json as as_json
    from gnnplace.report.answer import as_markdown as as_markdown
    from gnnplace.report.answer import as_page as as_page
    from gnnplace.report.answer import as_terminal as as_terminal
    from gnnplace.report.answer import boxed as boxed
    from gnnplace.report.answer import html_parts as html_parts
    from gnnplace.report.answer import text_table as text_table
    from gnnplace.report.comparisons import Comparison as Comparison
    from gnnplace.report.describing import describe as describe
    from gnnplace.report.describing import write_answer as write_answer
    from gnnplace.report.environment import caches as caches
    from gnnplace.report.environment import collect_environment as collect_environment
    from gnnplace.report.fidelity import write_study as write_study
    from gnnplace.report.machines import MachinePlans as MachinePlans
    from gnnplace.report.money import ClusterPrices as ClusterPrices
    from gnnplace.report.money import read_prices as read_prices
    from gnnplace.report.pictures import Axis as Axis
    from gnnplace.report.pictures import Picture as Picture
    from gnnplace.report.pictures import Series as Series
    from gnnplace.report.pictures import chart as chart
    from gnnplace.report.pictures import check_drawable as check_drawable
    from gnnplace.report.pictures import svg as svg
    from gnnplace.report.placements import write_page as write_page
    from gnnplace.report.placements import write_report as write_report
    from gnnplace.report.plans import BaselinePlans as BaselinePlans
    from gnnplace.report.plans import PlanDifference as PlanDifference
    from gnnplace.report.rates import parse_token_count as parse_token_count
    from gnnplace.report.road import Walking as Walking
    from gnnplace.report.road import walk_road as walk_road
    from gnnplace.report.tables import check_table as check_table

__getattr__, __dir__ = lazy_names(__name__)
