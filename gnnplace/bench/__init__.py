"""The bench room: suites, rows, resumable runs, summaries."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.bench.summary import SummaryOptions as SummaryOptions

__getattr__, __dir__ = lazy_names(__name__)
