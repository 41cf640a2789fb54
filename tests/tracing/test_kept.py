"""Whatever a user's step does is kept, refused in one line, or changed and said.

Every row of the table in `docs/reference/kept.md` has its models here; each is compared with the
user's own loop in eager PyTorch.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gnnplace.errors import CaptureError, ChangedWarning, InputError
from gnnplace.tracing.models import capture
from tests.tracing import kept_models, models
from tests.tracing.kept_models import CASES, REFUSED, REFUSED_ROWS, ROWS, net
from tests.tracing.truth import batch, differences, made

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kept.md"
# The loss of a Hugging Face model is decomposed otherwise in eager mode: equal up to rounding.
ROUNDED: set[str] = set()


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_equals_eager(name: str) -> None:
    assert differences(CASES[name], rounded=name in ROUNDED) == []


def test_autocast_around_the_capture_is_kept() -> None:
    around = lambda: torch.autocast("cpu", dtype=torch.bfloat16)  # noqa: E731
    assert differences(CASES["decisions"], around=around) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused_in_one_line(name: str) -> None:
    build, match = REFUSED[name]
    case = made(build)
    before = {k: v.clone() for k, v in case.model.state_dict().items()}
    with pytest.raises((CaptureError, InputError), match=match) as caught:
        capture(case.model, case.inputs, loss=case.loss)
    assert "\n" not in str(caught.value)
    after = case.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_page_has_a_row_for_every_case() -> None:
    sections = PAGE.read_text().split("\n## ")
    rows = {part.splitlines()[0]: _rows(part) for part in sections}
    assert rows["Kept"] == list(ROWS)
    assert rows["Refused"] == list(REFUSED_ROWS)
    assert rows["Changed and said"] == list(SAID)


def _rows(section: str) -> list[str]:
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines[1:]]


def _input_in_place() -> Any:
    return net(
        lambda model, x: torch.tanh(model.b(x)), forward=lambda m, x: m.a(x.mul_(2))
    )


def _watching_hook() -> Any:
    model = net()
    model.b.register_forward_hook(lambda module, inputs, output: None)
    return model


def _outside() -> Any:
    weight = torch.ones(8, requires_grad=True)
    return net(lambda model, x: torch.tanh(model.b(x)) * weight)


def _other_autocast(enabled: bool = True) -> Any:
    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            return model.a(x)

    return net(lambda model, x: torch.tanh(model.b(x)), forward=forward)


SAID = {
    "Random numbers of torch": (CASES["dropout"], "1 random op"),
    "Inputs that the model changes in place": (
        _input_in_place,
        "changes its input 0 in place",
    ),
    "What hooks do beside computing": (
        _watching_hook,
        "hooks of module 'b' ran at capture alone",
    ),
    "Tensors that need a gradient outside of the model": (
        _outside,
        "no parameter of the model",
    ),
    "Autocast for another device": (
        _other_autocast,
        r"torch.autocast\('cuda'\) at .*test_kept",
    ),
}


@pytest.mark.parametrize("row", SAID)
def test_what_is_changed_is_said(row: str) -> None:
    build, said = SAID[row]
    case = made(build)
    with pytest.warns(ChangedWarning, match=said):
        program = capture(case.model, case.inputs, loss=case.loss)
    assert any(re.search(said, line) for line in program.notices)
    assert differences(build) == []


def test_nothing_is_said_of_a_step_that_is_as_it_was() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChangedWarning)
        assert capture(nn.Linear(8, 8), (batch(),)).notices == ()
        off = made(lambda: _other_autocast(enabled=False))
        assert capture(off.model, off.inputs, loss=off.loss).notices == ()
        weight_norm = made(CASES["weight_norm_by_hooks"])
        assert capture(weight_norm.model, weight_norm.inputs).notices == ()


def test_of_an_autocast_that_was_made_before_it_is_said_that_it_may_be_off() -> None:
    region = torch.autocast("cuda", dtype=torch.bfloat16, enabled=False)
    case = made(lambda: net(lambda model, x: region(model.b)(x)))
    with pytest.warns(ChangedWarning, match="if it is enabled, does nothing"):
        capture(case.model, case.inputs, loss=case.loss)


def test_capture_leaves_attributes_and_generators_alone() -> None:
    model = made(CASES["kept_activation"]).model
    capture(model, (batch(),))
    assert (model.seen, model.calls, hasattr(model, "last")) == ([], 0, False)
    state = kept_models.random.getstate()
    with pytest.raises(CaptureError):
        capture(made(REFUSED["layer_drop"][0]).model, (batch(),))
    assert kept_models.random.getstate() == state


def test_wrappers_that_exchange_gradients_are_refused() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = models.Tied()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    with pytest.raises(CaptureError, match="wrapped in DistributedDataParallel"):
        capture(DistributedDataParallel(), (batch(),))


def test_an_optimizer_that_does_not_take_sparse_gradients_is_refused() -> None:
    case = made(CASES["sparse_embedding"])
    with pytest.raises(
        CaptureError, match=r"parameter '0\.weight' has a sparse gradient"
    ):
        capture(case.model, case.inputs, loss=case.loss, optimizer="adamw")
