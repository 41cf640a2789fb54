"""Networks by name, layer by layer, whose best split can be searched without a model."""
