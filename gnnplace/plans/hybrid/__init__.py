"""Data-parallel groups of model-parallel devices, and when they pay."""
