"""The GNN placer: a graph encoder and a sequence decoder that decide every device by themselves."""
