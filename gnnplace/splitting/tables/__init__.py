"""Cost tables of a model's layers for the search over splits, without torch."""
