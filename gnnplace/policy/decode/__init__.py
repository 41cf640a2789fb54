"""Decoding: a walk over the graph that gives every unit a device, seeing the partial schedule."""
