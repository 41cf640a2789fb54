"""Fake tensors of a process without a GPU: `make_fake_mode`, `without_pretended_gpus`.

A torch with CUDA that finds no GPU (what plain `pip install torch` brings to a Linux machine
without one) registers eight pretended GPUs as soon as a `FakeTensorMode` is entered. The next
backward pass then starts a thread for each of them, and no process that is forked afterwards can
run a backward pass: the workers of `execute` fail. No step needs a pretended GPU, so neither the
modes that are made here register any, nor those that torch makes on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Self

import torch

from gnnplace.foreign import patch_private
from gnnplace.torch_names import PRETENDED_GPUS, FakeTensorMode, c_library


def make_fake_mode() -> FakeTensorMode:
    """Return a mode that makes tensors without numbers and takes all others as constants."""
    if torch.backends.cuda.is_built() and not torch.cuda.is_available():
        return _WithoutPretendedGpus(allow_non_fake_inputs=True)
    return FakeTensorMode(allow_non_fake_inputs=True)


class _WithoutPretendedGpus(FakeTensorMode):
    """A mode that leaves the devices of the process as they are."""

    def __enter__(self) -> Self:
        with without_pretended_gpus():
            return super().__enter__()


@contextmanager
def without_pretended_gpus() -> Iterator[None]:
    """Keep every `FakeTensorMode` from registering pretended GPUs within."""
    with patch_private(c_library, PRETENDED_GPUS, nullcontext, "torch"):
        yield
