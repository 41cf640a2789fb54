"""Tensors without numbers: shape, type and device alone.

`make_fake_mode` makes torch's own fake mode fit for a process without a GPU. `without_numbers`
makes ops quick for layers that repeat.

Tracing, recording and proofs use them. Nothing here computes with numbers.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.fakes.mode import make_fake_mode as make_fake_mode
    from gnnplace.tracing.fakes.mode import (
        without_pretended_gpus as without_pretended_gpus,
    )
    from gnnplace.tracing.fakes.quick import BareMode as BareMode
    from gnnplace.tracing.fakes.quick import without_numbers as without_numbers

__getattr__, __dir__ = lazy_names(__name__)
