"""A joint plan run in plain PyTorch, in the order of its rows."""
