"""Devices of this machine, measured and estimated times of ops, and problems made of them."""
