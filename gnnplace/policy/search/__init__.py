"""Search that goes on from what the policy chose: moves, and cycles within a budget."""
