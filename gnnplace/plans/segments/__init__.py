"""A PyTorch model as a chain of segments to plan for, priced."""
