"""Whether a model's batch may be cut into micro-batches and replicas, before a plan does it.

The loss of the batch must be the mean of its shares' losses. It is followed from the batch's axis
to the loss (`tracing.batch_axis`) on four examples cut in two, under fake tensors. Of a list of
modules that are alike (the same class and parameters) the first two stand for all: what they do to
the examples, the others do. A mean over counts (of words that are no padding) is the mean of the
shares' only where every share counts as many, which a notice says; a sum is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from gnnplace.errors import CaptureError, GnnplaceError, InputError, OtherLossError
from gnnplace.tracing.cutting import Cutter
from gnnplace.tracing.export import check_cut
from gnnplace.tracing.loading import cut
from gnnplace.tracing.step import StepModule, default_loss
from gnnplace.zoo import Workload

EXAMPLES, SHARES, ALIKE = 4, 2, 2
COUNTS = "counts of the whole batch"
EVEN = (
    "the loss is a mean over counts, such as of words: it is that of the batch where every "
    "micro-batch and replica counts as many"
)


def why_not(workload: Workload) -> tuple[str, tuple[str, ...]]:
    """Why a workload of `EXAMPLES` examples cannot be cut, and what to know if it can.

    Returns:
        The reason, empty where it is proven that it may be cut; and notices.
    """
    try:
        try:
            with shortened(workload.model):
                notes = _proven(workload)
        except OtherLossError:
            raise
        except GnnplaceError:  # such a model may count its layers
            notes = _proven(workload)
    except OtherLossError as error:
        return _reason(str(error)), ()
    except (CaptureError, InputError) as error:
        return f"it cannot be proven that the batch may be cut: {error}", ()
    if any(COUNTS in note for note in notes):
        return "", (EVEN,)
    if any("sums over the examples" in note for note in notes):
        return "the loss is a sum over the examples; return their mean instead", ()
    return "", ()


def _proven(workload: Workload) -> tuple[str, ...]:
    """How the batch is cut; refuses where it is not proven."""
    loss = workload.loss or default_loss
    whole, part = (
        StepModule(workload.model, loss, w.inputs) for w in (workload, cut(workload, SHARES))
    )
    cutter = Cutter(whole, part, SHARES, accept=False, name=workload.name)
    check_cut(part, cutter)
    return cutter.batch.notes


@contextmanager
def shortened(model: nn.Module) -> Iterator[None]:
    """Without the modules of a list that are like the two before them."""
    kept: list[tuple[nn.ModuleList, dict[str, Any]]] = []
    for module in [m for m in model.modules() if isinstance(m, nn.ModuleList)]:
        children = dict(module._modules)
        last: list[Any] = []
        for name, child in children.items():
            seen = _structure(child)
            last = [*last, seen] if last and last[-1] == seen else [seen]
            if len(last) > ALIKE:
                del module._modules[name]
        kept.append((module, children))
    try:
        yield
    finally:
        for module, children in kept:
            module._modules.clear()
            module._modules.update(children)


def _structure(module: nn.Module | None) -> Any:
    if module is None:
        return None
    own = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
    return [type(m) for m in module.modules()], own


def _reason(told: str) -> str:
    """Without the name that leads, and what captures can do about it."""
    return told.partition(": ")[2].partition("; leave the batch whole")[0]
