"""A placed training step that a training loop of one's own calls: ``gnnplace.compile``."""
