"""Sweeps over recipes, by Optuna."""
