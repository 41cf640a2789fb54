"""The report room: tables, traces for Perfetto, a self-contained page."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.report.batches import batch_data as batch_data
    from gnnplace.report.batches import batch_lines as batch_lines
    from gnnplace.report.fits import fit_data as fit_data
    from gnnplace.report.fits import fit_lines as fit_lines
    from gnnplace.report.html import Html as Html
    from gnnplace.report.html import heading as heading
    from gnnplace.report.html import table as table
    from gnnplace.report.launch import converted_lines as converted_lines
    from gnnplace.report.pictures import Axis as Axis
    from gnnplace.report.pictures import Series as Series
    from gnnplace.report.pictures import chart as chart
    from gnnplace.report.pictures import svg as svg
    from gnnplace.report.placements import write_page as write_page
    from gnnplace.report.placements import write_placements as write_placements
    from gnnplace.report.rows import Row as Row
    from gnnplace.report.rows import make_row as make_row
    from gnnplace.report.rows import with_best_bound as with_best_bound
    from gnnplace.report.side_by_side import next_line as next_line
    from gnnplace.report.side_by_side import side_by_side_lines as side_by_side_lines
    from gnnplace.report.side_by_side import trade_lines as trade_lines
    from gnnplace.report.tables import comparison_table as comparison_table
    from gnnplace.report.tables import simulation_table as simulation_table
    from gnnplace.report.timeline import Timeline as Timeline
    from gnnplace.report.timeline import from_execution as from_execution
    from gnnplace.report.timeline import from_simulation as from_simulation
    from gnnplace.report.trace import chrome_trace as chrome_trace
    from gnnplace.report.trace import write_trace as write_trace
    from gnnplace.report.units import bytes_text as bytes_text
    from gnnplace.report.units import seconds_text as seconds_text

__getattr__, __dir__ = lazy_names(__name__)
