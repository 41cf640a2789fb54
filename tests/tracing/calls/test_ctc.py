"""CTC as a recorded call beside torch's own loss, on padded labels and on rows of all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCTC

from gnnplace.errors import CaptureError
from gnnplace.sharding.captured.split import layer_graph
from gnnplace.tracing.models import capture, capture_workload
from gnnplace.zoo import Workload
from tests.tracing.oracle import eager
from tests.tracing.straight_run import run_program

BATCH, STEPS, CLASSES, LETTERS = 4, 12, 5, 3
DRAWN = torch.Generator().manual_seed(0)
SOUND = torch.randn(BATCH, STEPS, 6, generator=DRAWN)
LABELS = torch.randint(1, CLASSES, (BATCH, LETTERS), generator=DRAWN)
COUNTS = torch.tensor([3, 1, 2, 3])
HEARD = torch.tensor([12, 10, 2, 11])
PADDED = torch.where(torch.arange(LETTERS) < COUNTS.unsqueeze(1), LABELS, -100)


class Speech(nn.Linear):
    """Scores of letters, and their loss; labels are padded or in one row."""

    def __init__(self, form: str, **options: Any) -> None:
        super().__init__(6, CLASSES)
        self.form, self.options = form, options

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor, heard: torch.Tensor
    ) -> torch.Tensor:
        scores = super().forward(x).log_softmax(-1).transpose(0, 1)
        mask = labels >= 0
        counts = mask.sum(-1)
        targets = labels.masked_select(mask) if self.form == "row" else labels.relu()
        if self.form == "numbers":
            heard, counts = (STEPS,) * len(x), [1] * len(x)
        if self.form == "one":
            scores, targets, heard, counts = (
                scores[:, 0],
                targets[0],
                heard[0],
                counts[0],
            )
        losses = functional.ctc_loss(scores, targets, heard, counts, **self.options)
        return losses.mean()


OPTIONS = (
    {},
    {"reduction": "sum", "zero_infinity": True},
    {"reduction": "none", "zero_infinity": True},
    {"blank": CLASSES - 1},
)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("form", ["padded", "row", "numbers", "one"])
def test_the_loss_is_torchs_own(form: str, options: dict[str, Any]) -> None:
    model = Speech(form, **options)
    inputs = (
        SOUND,
        PADDED,
        HEARD if "zero_infinity" in options else HEARD.clamp(min=9),
    )
    result, truth = run_program(capture(model, inputs)), eager(model, inputs)
    assert result.loss.isfinite()
    assert torch.equal(result.loss, truth.loss)
    for name, gradient in truth.gradients.items():
        torch.testing.assert_close(result.gradients[name], gradient)


@pytest.mark.parametrize("form", ["padded", "row"])
def test_the_examples_of_a_batch_may_be_cut(form: str) -> None:
    model = Speech(form, reduction="mean")
    inputs = (SOUND, PADDED, HEARD.clamp(min=9))
    program = capture_workload(Workload("speech", model, inputs), 2)
    assert program.batch is not None
    assert not program.batch.differs
    share = tuple(tensor[:2] for tensor in inputs)
    assert torch.equal(run_program(program).loss, eager(model, share).loss)
    layers = layer_graph(model, inputs, lambda output: output, "speech")
    rule = next(
        x
        for c, x in zip(layers.calls.calls, layers.rules, strict=True)
        if x.kind == "loss"
    )
    assert rule.results == (("0",),)
    assert rule.reads[0] == (None, "0", None)


def test_other_reads_of_a_row_of_unknown_length_are_refused() -> None:
    class Selecting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            chosen = y.masked_select(y > 0)  # here
            return chosen.sum() / len(chosen)

    model = Selecting(6, CLASSES)
    for options in ({}, {"forward_only": True}):
        with pytest.raises(
            CaptureError, match=r"what masked_select makes.*keep all entries"
        ):
            capture(model, SOUND, **options)
    with pytest.raises(
        CaptureError, match=r"what masked_select makes.*keep all entries"
    ):
        layer_graph(model, (SOUND,), None, "selecting")


def test_half_precision_is_refused_as_torch_has_none() -> None:
    with pytest.raises(
        CaptureError, match=r"half precision; give it log_probs\.float\(\)"
    ):
        capture(Speech("padded"), (SOUND, PADDED, HEARD), dtype="bfloat16")


SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "vocab_size": 10, "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0, "apply_spec_augment": False,
    "pad_token_id": 0, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0, "final_dropout": 0.0, "feat_quantizer_dropout": 0.0,
}  # fmt: skip


SLOW = [
    pytest.param(kind, marks=pytest.mark.campaign)
    for kind in ("wav2vec2", "wavlm", "unispeech")
]


@pytest.mark.parametrize("kind", ["hubert", "sew", *SLOW])
def test_speech_models_of_transformers_are_trained_by_their_labels(kind: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES)
    model = AutoModelForCTC.from_config(config).train()
    labels = torch.tensor([[1, 2, 2, -100], [3, -100, 4, 5]])
    inputs = {"input_values": torch.randn(2, 240), "labels": labels}
    program = capture(model, inputs)
    assert any("the check of a tensor at" in notice for notice in program.notices)
    result, truth = run_program(program), eager(model, inputs)
    torch.testing.assert_close(result.loss, truth.loss)
    assert result.gradients.keys() == truth.gradients.keys()
    for name, gradient in truth.gradients.items():
        torch.testing.assert_close(
            result.gradients[name], gradient, rtol=1e-4, atol=1e-5
        )
