"""A plan of split layers applied to a model by DTensor, run on real processes, checked."""
