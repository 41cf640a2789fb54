"""What is mended within a trace: recurrent layers, and masks of transformers' attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from gnnplace.errors import CaptureError
from gnnplace.tracing.aten import export
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.portable_attention import attention
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program

X = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


class First(nn.Module):
    """The sequence output of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}]
)
def test_gradients_equal_eager(
    kind: type[nn.Module], options: dict[str, object]
) -> None:
    model = First(kind(4, 5, **options))
    result, truth = run_program(capture(model, (X,))), eager(model, (X,))
    assert torch.allclose(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        assert torch.allclose(result.gradients[name], gradient, rtol=1e-4, atol=1e-6), (
            name
        )


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_between_layers_is_there(kind: type[nn.Module]) -> None:
    """Torch 2.13 loses it while it decomposes the layer."""
    program = capture(First(kind(4, 64, num_layers=3, dropout=0.5)), (X,))
    random = [
        op for op in program.ops if getattr(op.target, "__name__", "") == "seeded"
    ]
    assert len(random) == 2
    assert not torch.equal(run_program(program, 0).loss, run_program(program, 1).loss)


def test_no_dropout_in_evaluation() -> None:
    model = First(nn.LSTM(4, 5, num_layers=2, dropout=0.5)).eval()
    program = capture(model, (X,), forward_only=True)
    with torch.no_grad():
        assert torch.allclose(run_program(program).outputs[0], model(X), atol=1e-6)


class Language(nn.Module):
    """A language model's mean logit, which is told the place of every token or not."""

    def __init__(self) -> None:
        super().__init__()
        config = AutoConfig.for_model(
            "llama", hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, vocab_size=32,
        )  # fmt: skip
        config.use_cache = False  # with a cache positions are not looked at
        self.model = AutoModelForCausalLM.from_config(config)

    def forward(
        self, tokens: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(tokens, position_ids=places).logits.square().mean()


def test_attention_is_causal_by_a_flag_where_eager_mode_has_it_so() -> None:
    """Packed positions are known by numbers, which an input has anew at every step."""
    model, tokens = Language(), torch.arange(12).view(2, 6)
    packed = torch.tensor([0, 1, 2, 0, 1, 2]).expand(2, -1)
    for inputs, masked in (((tokens,), False), ((tokens, packed), True)):
        program = capture(model, inputs)
        calls = [op for op in program.ops if op.target is attention]
        assert len(calls) == 2
        for op in calls:
            assert (op.kwargs.get("attn_mask") is not None) is masked
            assert (True in op.args) is not masked
        result, truth = run_program(program), eager(model, inputs)
        assert torch.allclose(result.loss, truth.loss)
        for name, gradient in truth.gradients.items():
            assert torch.allclose(
                result.gradients[name], gradient, rtol=1e-4, atol=1e-7
            ), name


def test_lists_of_parameters_are_no_state_of_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer makes them anew whenever a parameter is set; tracing again would change nothing."""
    traced = []
    original = export._joint_once
    monkeypatch.setattr(
        export,
        "_joint_once",
        lambda *a, **more: traced.append(1) or original(*a, **more),
    )
    layer = nn.LSTM(4, 5)
    before = list(layer._flat_weights)
    capture(First(layer), (X,))
    assert len(traced) == 1
    assert all(a is b for a, b in zip(layer._flat_weights, before, strict=True))


def test_a_function_whose_tensor_torch_loses_is_refused() -> None:
    """Torch 2.13 passes on no weight of `l1_loss` where its calls are recorded."""

    def loss(output: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.l1_loss(output, torch.zeros_like(output), weight=weight)

    with pytest.raises(
        CaptureError, match="torch loses a tensor that l1_loss is given at"
    ):
        capture(nn.Linear(4, 4), (X[0], torch.rand(2, 4)), loss=loss)


def filled_by(number: torch.Tensor) -> torch.Tensor:
    """A tensor that is changed through a view of a view, as masks are."""
    made = torch.zeros(3, 2, dtype=torch.int64)
    made[1:][made[1:] == 0] = number
    return made[:, 0]


class Asking(nn.Module):
    """Asks for numbers of tensors that follow from no input, and scales by them."""

    def __init__(self, numbers: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.numbers = nn.Linear(4, 4), numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.numbers(x)
        if kept.any() and 2 in kept.tolist():
            x = x * int(kept.sum()) / kept.double().mean().item()
        return self.layer(x)


@pytest.mark.parametrize(
    "numbers",
    [
        lambda x: torch.arange(x.shape[-1]),
        lambda x: torch.tensor([2, x.shape[0]]).cumsum(0),
        lambda x: torch.zeros(3, dtype=torch.int64).add(2)[1:],
        lambda x: torch.zeros(2).long().fill_(x.shape[0]),
        lambda x: filled_by(torch.tensor(2)),
    ],
)
def test_numbers_of_constants_are_said(
    numbers: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = Asking(numbers)
    result, truth = run_program(capture(model, (X,))), eager(model, (X,))
    assert torch.allclose(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        assert torch.allclose(result.gradients[name], gradient, rtol=1e-4, atol=1e-6), (
            name
        )


@pytest.mark.parametrize(
    "numbers",
    [
        lambda x: x.long(),
        lambda x: torch.randint(3, (2,)),
        lambda x: torch.randn(4).bernoulli(0.5).long(),
        lambda x: torch.empty(2).long(),
        lambda x: filled_by(x[0, 0].long()),
        lambda x: torch.zeros(2).uniform_().long(),
    ],
)
def test_numbers_of_others_are_not(
    numbers: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(CaptureError, match="depends on the numbers of a tensor"):
        capture(Asking(numbers), (X,))


def test_a_transformer_finds_its_mask_causal() -> None:
    class Both(nn.Transformer):
        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            return super().forward(source, target, tgt_mask=mask)

    model = Both(4, 2, 1, 1, 8, dropout=0.0, batch_first=True)
    result, truth = run_program(capture(model, (X, X))), eager(model, (X, X))
    assert torch.allclose(result.loss, truth.loss)


class Uncertain(nn.Module):
    """A mean and a variance of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean(x), functional.relu(self.spread(x))


@pytest.mark.parametrize(
    ("options", "columns"),
    [({}, 3), ({"full": True, "reduction": "sum"}, 3), ({"eps": 1e-2}, 1)],
)
def test_the_loss_of_a_gaussian_is_torchs_own(
    options: dict[str, object], columns: int
) -> None:
    target = torch.ones(3, 2, 3)

    def loss(
        made: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor
    ) -> torch.Tensor:
        return functional.gaussian_nll_loss(
            made[0], target, made[1][..., :columns], **options
        )  # type: ignore[arg-type]

    model = Uncertain()
    result, truth = (
        run_program(capture(model, (X, target), loss=loss)),
        eager(model, (X, target), loss),
    )
    assert torch.allclose(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        assert torch.allclose(result.gradients[name], gradient, rtol=1e-4, atol=1e-6), (
            name
        )


def test_a_negative_variance_gives_no_number() -> None:
    target = torch.ones(3, 2, 4)

    def variance(made, target):
        return functional.gaussian_nll_loss(made, target, -made.square())

    model = nn.Linear(4, 4)
    assert run_program(capture(model, (X, target), loss=variance)).loss.isnan()
    with pytest.raises(ValueError, match="negative"):
        variance(model(X), target)


def test_a_layer_that_is_moved_to_where_it_is_already_is_captured() -> None:
    class Moved(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self:
                x = layer.to(x.dtype).to(x.device)(x)
            return x

    moved, x = Moved(nn.Linear(3, 3), nn.BatchNorm1d(3)), torch.randn(4, 3)
    program = capture(moved, x)
    assert program.ops == capture(nn.Sequential(*moved), x).ops


def test_a_check_of_numbers_is_left_out_and_said() -> None:
    class Checked(nn.Linear):
        def forward(self, x: torch.Tensor, limit: float = -100.0) -> torch.Tensor:
            torch._check_tensor_all(x > limit)
            torch._check_tensor_all(torch.arange(2) < 2)
            return super().forward(x)

    model = Checked(4, 4)
    program = capture(model, (X,))
    assert program.ops == capture(nn.Linear(4, 4), (X,)).ops
    assert [line for line in program.notices if "the check of a tensor at" in line]
    false = lambda made: torch._check_tensor_all(torch.arange(2) < 1) or made.sum()  # noqa: E731
    with pytest.raises(CaptureError, match="RuntimeError"):
        capture(nn.Linear(4, 4), (X,), loss=false)


def test_pictures_beside_text() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    eyes = CLIPVisionConfig(**sizes, num_attention_heads=2, image_size=8, patch_size=4)
    text = LlamaConfig(**sizes, vocab_size=20, num_attention_heads=2)
    picture = 19
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=eyes, text_config=text, image_token_id=picture)
    )
    ids = torch.arange(12).view(2, 6).repeat(1, 2)
    ids[:, 1:5] = picture
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 8, 8), "labels": ids}
    result, truth = run_program(capture(model, inputs)), eager(model, inputs)
    assert torch.equal(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        assert torch.allclose(result.gradients[name], gradient, rtol=1e-4, atol=1e-6), (
            name
        )
