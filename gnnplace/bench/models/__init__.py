"""Models that suites, recipes and data sets name, one a file; `gnnplace.zoo.workload` has them."""
