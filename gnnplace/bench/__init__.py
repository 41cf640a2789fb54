"""The bench room: suites, rows, resumable runs, summaries."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.bench.runner import Override as Override
    from gnnplace.bench.runner import Where as Where
    from gnnplace.bench.runner import run_suite as run_suite
    from gnnplace.bench.submissions import check_files as check_files
    from gnnplace.bench.submissions import compute_coverage as compute_coverage
    from gnnplace.bench.submissions import make_declaration as make_declaration
    from gnnplace.bench.submissions import pack_rows as pack_rows
    from gnnplace.bench.submissions import write_submission as write_submission
    from gnnplace.bench.suite import suite_names as suite_names
    from gnnplace.bench.suite import suite_path as suite_path
    from gnnplace.bench.summary import SummaryOptions as SummaryOptions
    from gnnplace.bench.summary import summarise as summarise

__getattr__, __dir__ = lazy_names(__name__)
