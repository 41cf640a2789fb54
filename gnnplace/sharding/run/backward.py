"""Doing something once a backward pass is over."""

from __future__ import annotations

from collections.abc import Callable

import torch


def after_backward(callback: Callable[[], None]) -> None:
    """Has autograd call back when the backward pass that is running is over.

    Must be called during a backward pass, such as from a tensor's hook.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]
