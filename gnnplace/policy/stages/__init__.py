"""A network that proposes stages: where a large graph is cut, and which device has each run."""
