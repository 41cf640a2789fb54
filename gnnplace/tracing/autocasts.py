"""`torch.autocast` for another device than the one that a step is captured on: it does nothing.

Autocast looks at the device of every tensor. A model that says `torch.autocast("cuda")` computes in
half precision on a GPU; captured on a CPU its ops have no casts, wherever they run afterwards, just
as eager PyTorch has none on a CPU. That is said in a line. One that was made before the capture, as
a decorator is, does not tell whether it was asked for where torch has no GPU; the line says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch.amp import autocast_mode

from gnnplace.tracing.blame import user_place

HOST = "cpu"
ASKED = "_gnnplace_asked"
"""Attribute of an autocast: whether it was asked for; torch turns it off where there is no GPU."""


@contextmanager
def other_autocasts() -> Iterator[list[str]]:
    """Collects a line for every region of another device that is entered inside."""
    found: list[str] = []
    kind = autocast_mode.autocast
    make, enter = kind.__init__, kind.__enter__

    def made(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        *rest: Any,
        **more: Any,
    ) -> None:
        make(self, device_type, dtype, enabled, *rest, **more)
        setattr(self, ASKED, enabled)

    def entered(self: Any) -> Any:
        asked = getattr(self, ASKED, self._enabled or None)
        if self.device != HOST and asked is not False:
            known = "" if asked else ", if it is enabled,"
            found.append(
                f"torch.autocast({self.device!r}){user_place()}{known} does nothing to a step that "
                "is captured on a CPU, wherever it runs; use torch.autocast('cpu'), whose casts "
                "are kept, or capture with dtype='bfloat16'"
            )
        return enter(self)

    with ExitStack() as stack:
        stack.enter_context(patch.object(kind, "__init__", made))
        stack.enter_context(patch.object(kind, "__enter__", entered))
        yield found
