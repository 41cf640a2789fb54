"""Names of schedules, apart from their orders, which take a while to import."""

from __future__ import annotations

ZBV = "zbv"
"""The zero-bubble schedule in the shape of a V, in the order of PyTorch's own."""
SHAPED_AS_V = ("v", ZBV)
"""Schedules of two chunks a rank, on the way there and on the way back."""
