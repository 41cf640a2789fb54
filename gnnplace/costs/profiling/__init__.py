"""Devices of this machine, measured and estimated times. ``targets`` imports no torch before something is measured."""
