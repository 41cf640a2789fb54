"""gnnplace: learned device placement, measured and bounded."""
