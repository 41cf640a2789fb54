"""Seconds and bytes of ops, messages and steps: looked up here, measured in ``profiling``."""
