"""The bench room: suites, rows, resumable runs, summaries."""

from gnnplace.bench.runner import run_suite as run_suite
