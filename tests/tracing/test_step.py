"""A model and its loss as one module, and which inputs go to which of the two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gnnplace.errors import InputError, UnsupportedError
from gnnplace.tracing.models import capture
from gnnplace.tracing.step import (
    StepModule,
    check_loss,
    default_loss,
    describe_arguments,
)

ONES = torch.ones(2, 4)


def test_default_loss() -> None:
    assert default_loss({"loss": ONES.sum(), "logits": ONES}) == ONES.sum()
    assert (
        default_loss((ONES, torch.ones(2, dtype=torch.long), [ONES])) == 2 * ONES.sum()
    )
    with pytest.raises(InputError, match="give a loss"):
        default_loss(torch.ones(2, dtype=torch.long))
    with pytest.raises(InputError, match=r"or give a loss: lambda output: output\[0\]"):
        default_loss((ONES.sum(), ONES))


def test_lazy_layers_are_initialised_by_the_example() -> None:
    """As one call of the model does it, which leaves modes and statistics as they are."""
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.Dropout())
    torch.manual_seed(0)
    StepModule(model, None, (ONES,))
    torch.manual_seed(0)
    expected = nn.Linear(4, 3)
    assert torch.equal(model[0].weight, expected.weight)
    assert model.training
    assert model[1].training
    assert model[1].num_batches_tracked == 0
    with pytest.raises(InputError, match="calling it with the example inputs failed"):
        StepModule(nn.Sequential(nn.LazyLinear(3), nn.Linear(4, 3)), None, (ONES,))
    unused = nn.Sequential(nn.Linear(4, 3))
    unused[0].more = nn.LazyLinear(3)
    with pytest.raises(InputError, match=r"parameter '0.more.weight' is lazy"):
        StepModule(unused, None, (ONES,))


def test_a_loss_has_no_parameters_but_those_of_the_model() -> None:
    model, loss = nn.Linear(4, 4), nn.Linear(4, 1)
    check_loss(
        nn.Sequential(model, nn.Tanh(), nn.Linear(4, 1).requires_grad_(False)), model
    )
    with pytest.raises(
        UnsupportedError, match="the loss has a parameter 'weight' of its own"
    ):
        check_loss(loss, model)


def test_constants_among_inputs_and_sources() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return super().forward(input) * scale

    step = StepModule(Scaled(4, 4), None, (ONES, 3.0))
    assert step.sources() == ("0",)
    assert len(step.inputs()) == 1
    assert StepModule(Scaled(4, 4), None, {"input": ONES}).sources() == ("input",)


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"Linear.forward.* cannot take 2 positional"):
        StepModule(nn.Linear(4, 4), None, (ONES, ONES))


class Two(nn.Module):
    """Takes rows of a table by their index."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.table(index))


class Batch(Two):
    """Takes a batch as one dict."""

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(batch["x"], batch["index"])


class Pair(Two):
    """Takes a batch as one pair."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return super().forward(*pair)


def of_batch(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss that reads its target from the batch."""
    return nn.functional.mse_loss(output, batch["y"])


RANDOM = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 3, generator=RANDOM), torch.randn(4, 2, generator=RANDOM)
INDEX = torch.tensor([0, 3, 1, 4])
ALL = {"x": X, "index": INDEX, "y": Y}


@pytest.mark.parametrize(
    ("model", "loss", "inputs"),
    [
        (Two, nn.MSELoss(), (X, INDEX, Y)),
        (Two, nn.MSELoss(), ((X, INDEX), Y)),
        (Two, nn.MSELoss(), [[X, INDEX], Y]),
        (Two, nn.MSELoss(), ({"x": X, "index": INDEX}, Y)),
        (Two, nn.functional.mse_loss, ALL),
        (Pair, nn.MSELoss(), ((X, INDEX), Y)),
        (Batch, nn.MSELoss(), ({"x": X, "index": INDEX}, Y)),
        (Batch, of_batch, ALL),
    ],
)
def test_every_form_is_the_same_step(
    model: type[nn.Module], loss: Any, inputs: Any
) -> None:
    torch.manual_seed(0)
    made = model()
    expected = nn.functional.mse_loss(Two.forward(made, X, INDEX), Y)  # type: ignore[arg-type]
    step = StepModule(made, loss, inputs)
    assert torch.equal(step(*step.inputs()), expected)
    assert capture(made, inputs, loss=loss).ops


def test_targets_are_the_last_inputs_that_the_loss_asks_for() -> None:
    found = describe_arguments(nn.Linear(3, 3), nn.MSELoss(), (X, Y), {})
    assert found.args == (X,)
    assert found.targets == (Y,)
    alone = describe_arguments(nn.Linear(3, 3), lambda out: out.mean(), (X,), {})
    assert (alone.args, alone.targets) == ((X,), ())
    shared = describe_arguments(
        nn.Linear(3, 3), lambda out, x: (out - x).mean(), (X,), {}
    )
    assert shared.args == shared.targets == (X,)


def test_a_tuple_stays_what_the_model_takes() -> None:
    found = describe_arguments(Pair(), None, ((X, INDEX),), {})
    assert found.args == ((X, INDEX),)
    assert describe_arguments(Two(), None, ((X, INDEX),), {}).args == (X, INDEX)


def test_what_nothing_takes_is_refused_with_the_forms_there_are() -> None:
    with pytest.raises(
        InputError, match=r"Two.forward.* cannot take 3 positional.*dict of its"
    ):
        describe_arguments(Two(), None, (X, INDEX, Y), {})
