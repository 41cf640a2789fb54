"""LightningModules of one's own trained placed: a strategy for Lightning's Trainer."""
