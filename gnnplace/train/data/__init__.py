"""Problems to learn from and to test on: captured graphs, random families, recipes, cards."""
