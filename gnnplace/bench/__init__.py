"""The bench room: suites, rows, resumable runs, summaries."""
