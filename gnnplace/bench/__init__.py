"""The bench room: suites, rows, resumable runs, summaries."""

from gnnplace.bench.runner import Override as Override
from gnnplace.bench.runner import Where as Where
from gnnplace.bench.runner import run_suite as run_suite
from gnnplace.bench.summary import summarise as summarise
