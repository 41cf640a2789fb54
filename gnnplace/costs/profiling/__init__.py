"""Devices of this machine, measured and estimated times. ``targets`` needs no torch."""
