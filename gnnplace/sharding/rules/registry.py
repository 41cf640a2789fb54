"""The rule of every call."""

from __future__ import annotations

from collections.abc import Callable

from gnnplace.sharding.captured.calls import CallGraph
from gnnplace.sharding.rules.attention import ATTENTION_RULES
from gnnplace.sharding.rules.elementwise import ELEMENTWISE_RULES, elementwise, is_elementwise
from gnnplace.sharding.rules.losses import LOSS_RULES
from gnnplace.sharding.rules.norms import NORM_RULES
from gnnplace.sharding.rules.probing import UNKNOWN, with_batches
from gnnplace.sharding.rules.products import PRODUCT_RULES, TRANSPOSED
from gnnplace.sharding.rules.rule import Case, Rule, case_of, whole
from gnnplace.sharding.rules.shapes import SHAPE_RULES, with_groups

RULES: dict[str, Callable[[Case], Rule]] = {
    **SHAPE_RULES,
    **ELEMENTWISE_RULES,
    **PRODUCT_RULES,
    **ATTENTION_RULES,
    **NORM_RULES,
    **LOSS_RULES,
}

ORDERS: dict[str, tuple[str, ...]] = {  # of tensors, as the rules expect them
    "linear": ("input", "weight", "bias"),
    "addmm": ("input", "mat1", "mat2"),
    **dict.fromkeys(("matmul", "mm", "bmm"), ("input", "other")),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", *TRANSPOSED), ("input", "weight", "bias")),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask"),
    "multi_head_attention_forward": ("query", "key", "value"),
    "embedding": ("input", "weight"),
    "batch_norm": ("input",),
    "layer_norm": ("input",),
    **dict.fromkeys(("cross_entropy", "nll_loss"), ("input", "target", "weight")),
}


def rules_of(graph: CallGraph) -> tuple[Rule, ...]:
    """A rule for each call of a graph."""
    rules = [rule_of(case_of(graph, call)) for call in graph.calls]
    return with_groups(graph, with_batches(graph, rules))


def rule_of(case: Case) -> Rule:
    """How a call can be split; whole where that is not known."""
    if not case.shapes:
        return whole(case, "")
    name = case.call.kind
    found = RULES.get(name)
    if found is None:
        if not is_elementwise(name) or case.call.changes:
            return whole(case, f"{UNKNOWN} {name!r}")
        found = elementwise
    if not _ordered(case, ORDERS.get(name, ())):
        return whole(case, f"{name} with keywords in another order")
    return found(case)


def _ordered(case: Case, names: tuple[str, ...]) -> bool:
    """Whether the first tensors that a call reads are those that a rule expects, in its order."""
    slots = [case.slot(position, name) for position, name in enumerate(names)]
    given = [slot for slot in slots if slot is not None]
    return given == list(range(len(given)))
