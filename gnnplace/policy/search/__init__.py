"""Search guided by the policy: moves, their features, and restarts within a budget."""
