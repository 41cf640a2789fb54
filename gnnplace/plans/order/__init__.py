"""The order of actions of every pipeline rank, its checker and its step time."""
