"""Model types of transformers: each is planned, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.campaign.model_types import TYPES, judge, plan_types, small_model

FEW = 25  # types that are planned by one test
GROUPS = [TYPES[first : first + FEW] for first in range(0, len(TYPES), FEW)]


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "group", GROUPS, ids=[f"{group[0]}-{group[-1]}" for group in GROUPS]
)
def test_model_types_are_planned_or_refused_in_one_line(
    group: list[str], counted: Callable[[str, int], None]
) -> None:
    """Twenty-five commands of 5 to 30 s each."""
    outcomes = list(plan_types(group))
    for kind in ("planned", "refused", "wrong"):
        counted(
            f"model types, {kind}", sum(outcome.kind == kind for outcome in outcomes)
        )
    assert not [
        (outcome.model, outcome.message)
        for outcome in outcomes
        if outcome.kind == "wrong"
    ]


def test_the_list_is_in_order_and_models_are_small() -> None:
    assert len(TYPES) == 300
    assert sorted(TYPES) == TYPES
    assert "n_layer=2" in small_model("gpt2")
    assert (
        "text_config={model_type: clip_text_model, num_hidden_layers: 2}"
        in small_model("clip")
    )


@pytest.mark.parametrize(
    ("code", "error", "kind"),
    [
        (0, "", "planned"),
        (3, "gnnplace: needs 95 GB on the fullest GPU", "planned"),
        (2, "gnnplace: hf:bros: no example inputs are known for it", "refused"),
        (2, "gnnplace: capture failed: RuntimeError: shape", "wrong"),
        (2, "gnnplace: a line\ngnnplace: another", "wrong"),
        (1, "Traceback (most recent call last):", "wrong"),
        (None, "", "wrong"),
    ],
)
def test_an_end_is_judged(code: int | None, error: str, kind: str) -> None:
    assert judge(code, error)[0] == kind
