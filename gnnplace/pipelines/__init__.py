"""A joint plan of a PyTorch model: its chain of segments, priced, and the plan run for real."""
