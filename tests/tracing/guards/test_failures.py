"""The message names the innermost module, the user's own line, and what to write instead."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._library import opaque_object
from torch._subclasses import functional_tensor
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.utils import add_remaining_self_loops

from gnnplace.errors import CaptureError
from gnnplace.planning.plans import plan_model
from gnnplace.tracing.guards.failures import blame
from gnnplace.tracing.models import capture
from gnnplace.tracing.step import StepModule
from tests.run.planned.toys import cpus
from tests.tracing import models
from tests.tracing.straight_run import run_program


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("first line\nsecond line")


def message(model: nn.Module) -> str:
    step = StepModule(model, None, (models.batch(),))
    try:
        step(*step.inputs())
    except Exception as error:
        return blame(error, step)
    raise AssertionError("it did not fail")


def test_layers_that_are_left_out_by_chance_are_told_by_their_rate() -> None:
    small = (
        "d_model=16&encoder_layers=1&decoder_layers=1&vocab_size=32&batch=2&length=4"
    )
    chance = f"hf:bart?{small}&decoder_layerdrop=0.5"
    with pytest.raises(CaptureError, match=r"in module 'model\.decoder'") as told:
        plan_model(chance, cpus(2), given="tp=2,microbatch_size=2")
    assert str(told.value).endswith("left out by chance: configure decoder_layerdrop=0")


def test_inner_module_and_line() -> None:
    text = message(nn.Sequential(nn.Linear(8, 8), Broken()))
    assert "in module '1' (Broken)" in text
    assert "test_failures.py:" in text
    assert text.endswith("ValueError: first line")


def test_without_a_line_of_the_user_the_line_of_the_module() -> None:
    text = message(nn.Sequential(nn.Linear(9, 8)))
    assert "in module '0' (Linear)" in text
    assert "linear.py:" in text


def failing(step: StepModule) -> None:
    try:
        step(*step.inputs())
    except ValueError as error:
        raise RuntimeError("export failed") from error


def test_causes_are_followed() -> None:
    step = StepModule(Broken(), None, (models.batch(),))
    with pytest.raises(RuntimeError) as caught:
        failing(step)
    assert "(Broken)" in blame(caught.value, step)


def test_an_op_that_fails_after_export_is_found_in_the_source() -> None:
    class Picking(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output = super().forward(input)
            return output[output > 0].sum()

    with pytest.raises(CaptureError, match=r"module '0'.* at .*test_failures.py:\d+"):
        capture(nn.Sequential(Picking(8, 8)), (models.batch(),))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Branch(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if y.sum() > 0:  # here
            y = y * 2
        return y


class Loop(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        while y.norm() > 1:  # here
            y = y / 2
        return y


class Masked(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y[y > 0]  # here


class Positions(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x[:, 0] > 0).nonzero()  # here
        return self.layer(x)[rows[:, 0]]


class Unique(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.unique(x).sum()  # here


class Item(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * y.max().item()  # here


class Asserting(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert int(x.max()) < 9  # here
        return self.layer(x)


class Printing(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        print(f"{y.mean():.3f}")  # here
        return y


class Numpy(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.from_numpy(np.tanh(x.numpy()))  # here


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.largest = x.max().item()  # here
        return x / ctx.largest

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.largest


class Custom(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Scale.apply(self.layer(x))


class Conditional(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))


class ConditionalLayers(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.layer(y), lambda y: y.sin(), (x,))


class Speech(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x).log_softmax(-1).unsqueeze(1)
        whole = x[:1, 0].long() + 4
        return torch.ctc_loss(scores, whole.view(1, 1) - 3, whole, whole - 3)  # here


CASES = [
    (Speech, "call it as torch.nn.functional.ctc_loss"),
    (Branch, "torch.where"),
    (Loop, "loop a fixed number of times"),
    (Masked, "masked_fill"),
    (Positions, "give the positions as an input"),
    (Unique, "make it before the model"),
    (Item, "leave it a tensor"),
    (Asserting, "compare it without int(), float() or tolist(), or check it outside"),
    (Printing, "take it out of the forward pass"),
    (Numpy, "use torch's function of that name"),
    (Custom, "leave it a tensor"),
]


def find_line(kind: type[nn.Module]) -> int:
    """Number of the first line that says ``# here`` from the class on."""
    source = kind if kind is not Custom else Scale
    lines = Path(__file__).read_text().splitlines()
    begin = next(
        i
        for i, line in enumerate(lines)
        if line.startswith(f"class {source.__name__}(")
    )
    return next(i for i in range(begin, len(lines)) if lines[i].endswith("# here")) + 1


def refusal(model: nn.Module, inputs: object, *, forward_only: bool = False) -> str:
    with pytest.raises(CaptureError) as raised:
        capture(model, inputs, forward_only=forward_only)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("forward_only", [False, True], ids=["training", "inference"])
@pytest.mark.parametrize(
    ("kind", "instead"), CASES, ids=lambda case: getattr(case, "__name__", "")
)
def test_the_line_and_what_to_write_instead(
    kind: type[nn.Module], instead: str, forward_only: bool
) -> None:
    told = refusal(kind(), torch.ones(4, 4), forward_only=forward_only)
    assert f"{__file__}:{find_line(kind)}: " in told
    assert instead in told


@pytest.mark.parametrize("kind", [Conditional, ConditionalLayers])
def test_branches_of_torch_cond(kind: type[nn.Module]) -> None:
    assert "torch.where(condition, a, b)" in refusal(kind(), torch.ones(4, 4))


@pytest.mark.parametrize("kind", [GATConv, GCNConv])
def test_self_loops_of_a_graph_layer(kind: type[nn.Module]) -> None:
    graph = torch.ones(5, 4), torch.tensor([[0, 1, 2], [1, 2, 4]])
    reason = refusal(kind(4, 4), graph)
    assert "add_self_loops=False" in reason
    assert reason.endswith(
        "before the model (torch_geometric.utils.add_remaining_self_loops)"
    )
    torch.manual_seed(0)
    layer = kind(4, 4, add_self_loops=False)
    truth = kind(4, 4)
    truth.load_state_dict(layer.state_dict())
    x, edges = graph
    # Some edges are loops already.
    edges = torch.cat([edges, edges[:1].repeat(2, 1)[:, :2]], 1)
    looped, _ = add_remaining_self_loops(edges, num_nodes=len(x))
    loss = run_program(capture(layer, (x, looped))).loss
    torch.testing.assert_close(loss, truth(x, edges).sum().detach())


class Chosen(Layer):
    """What is told to be written instead can be captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y = torch.where(y.sum() > 0, y * 2, y) * y.max().detach()
        kept = y > 0
        return y.masked_fill(~kept, 0).sum() / kept.sum().clamp(min=1)


def test_what_is_told_to_be_written_works() -> None:
    assert capture(Chosen(), torch.ones(4, 4)).ops


def test_a_change_of_requires_grad_is_said_in_our_own_words() -> None:
    class Freezing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.requires_grad_(False)
            return super().forward(x)

    with pytest.raises(
        CaptureError, match="requires_grad is changed within the step"
    ) as caught:
        capture(Freezing(8, 8), (models.batch(),))
    assert "RuntimeError" not in str(caught.value)


class Inferring(nn.Module):
    """A product of a tensor that is made under `torch.inference_mode`, saved for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            factor = self.linear(x).view(4, 8)
        return self.linear(x) * factor


class Drawing(nn.Module):
    """A sum with numbers that are drawn from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return self.linear(x) + torch.rand(4, 8, generator=generator)


class StorageTable(weakref.WeakKeyDictionary[Any, Any]):
    """What torch 2.12 has for storages of tensors of inference mode: it lacks those of views."""

    def get(self, key: Any, default: Any = None) -> Any:
        raise KeyError(weakref.ref(key))


def take_tables_of_212(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the two places of torch in which 2.12.1 differs from 2.13 (read in its sources)."""
    start = functional_tensor.FunctionalTensorMode.__init__

    def start_with_table(self: Any, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        self._storage_to_base = StorageTable()

    monkeypatch.setattr(
        functional_tensor.FunctionalTensorMode, "__init__", start_with_table
    )
    types = opaque_object._OPAQUE_TYPES
    for kind in [kind for kind in types if kind is torch.Generator]:
        monkeypatch.delitem(types, kind)


@pytest.mark.parametrize("is_212", [False, True])
@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (Inferring, r"write torch\.no_grad\(\), which"),
        (Drawing, "leave generator= out"),
    ],
)
def test_inference_mode_and_own_generators_have_one_line(
    is_212: bool, model: type[nn.Module], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_212:
        take_tables_of_212(monkeypatch)
    with pytest.raises(CaptureError, match=remedy) as caught:
        capture(model(), (torch.ones(4, 8),))
    assert "\n" not in str(caught.value)
    assert "Error" not in str(caught.value)
