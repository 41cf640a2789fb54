"""`gnnplace.experts` beside a loop in plain PyTorch, and beside transformers' own experts."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.moe import use_experts_implementation

import gnnplace
from gnnplace.errors import CaptureError, InputError
from gnnplace.tracing.calls.mixture import ACTIVATIONS, as_one_call, loop_over_experts

TOKENS, WIDTH, INNER, COUNT, CHOSEN = 12, 6, 5, 4, 2
PLAIN = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
}


def drawn(rows, dtype=torch.float64):
    torch.manual_seed(3)
    shapes = (
        (TOKENS, WIDTH),
        (TOKENS, CHOSEN),
        (COUNT, rows, WIDTH),
        (COUNT, WIDTH, INNER),
    )
    x, weights, up, down = (
        torch.randn(s, dtype=dtype).requires_grad_() for s in shapes
    )
    index = torch.randint(0, COUNT - 1, (TOKENS, CHOSEN))  # the last expert has no row
    index[0, 0] = COUNT  # no expert at all
    return x, index, weights, up, down


def looped(x, index, weights, up, down, act, up_bias=None, down_bias=None):
    """Every token by itself."""
    rows = []
    for token in range(len(x)):
        total = torch.zeros_like(x[token])
        for place in range(index.shape[1]):
            number = int(index[token, place])
            if number >= len(up):
                continue
            made = up[number] @ x[token] + (0 if up_bias is None else up_bias[number])
            if len(made) == 2 * down.shape[2]:
                middle = PLAIN[act](made[: len(made) // 2]) * made[len(made) // 2 :]
            else:
                middle = PLAIN[act](made)
            out = down[number] @ middle + (
                0 if down_bias is None else down_bias[number]
            )
            total = total + weights[token, place] * out
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("rows", [INNER, 2 * INNER])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_a_loop_over_tokens(act, rows, biased):
    tensors = drawn(rows)
    shapes = [(COUNT, rows), (COUNT, WIDTH)] * biased
    biases = [
        torch.randn(s, dtype=torch.float64).div(9).requires_grad_() for s in shapes
    ]
    learned = [*(t for t in tensors if t.requires_grad), *biases]
    truth = looped(*tensors, act, *biases)
    gradients = torch.autograd.grad(truth.sin().sum(), learned)
    made = gnnplace.experts(*tensors, act, *biases)
    own = torch.autograd.grad(made.sin().sum(), learned)
    torch.testing.assert_close(made, truth, rtol=1e-12, atol=1e-12)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_it_works_in_the_type_of_autocast():
    tensors = drawn(2 * INNER, torch.float32)
    x, index, weights, up, down = tensors
    with torch.autocast("cpu", torch.bfloat16):
        made = gnnplace.experts(*tensors)
    half = [t.detach().bfloat16().float() for t in (x, up, down)]
    truth = looped(half[0], index, weights.detach(), half[1], half[2], "silu")
    assert made.dtype == torch.float32
    torch.testing.assert_close(made.detach(), truth, rtol=0.05, atol=0.05)
    assert not torch.allclose(made, gnnplace.experts(*tensors), rtol=1e-6, atol=1e-6)
    made.sum().backward()
    assert {t.grad.dtype for t in (x, weights, up, down)} == {torch.float32}


KINDS = {
    "mixtral": {"num_local_experts": 4, "intermediate_size": 48, "num_key_value_heads": 2},
    "deepseek_v3": {
        "moe_intermediate_size": 16, "n_routed_experts": 8, "first_k_dense_replace": 1,
        "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "num_key_value_heads": 4,
    },
    "gpt_oss": {"num_local_experts": 4, "intermediate_size": 48, "num_key_value_heads": 2,
                "head_dim": 8, "num_experts_per_tok": 2},
    "minimax_m3_vl_text": {"num_local_experts": 4, "intermediate_size": 48, "head_dim": 8,
                           "num_key_value_heads": 2, "num_experts_per_tok": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_transformers_train_as_by_their_own_loop(kind):
    config = AutoConfig.for_model(
        kind, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
        use_cache=False, **KINDS[kind],
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).double()
    words = torch.randint(0, 64, (3, 8))

    def step():
        model.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    loop_over_experts(model)
    truth = step()
    with as_one_call(model):
        made = step()
    assert model.config._experts_implementation == "eager"
    for one, other in zip(made, truth, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


class Odd(nn.Module):
    """Experts whose gate mixes features, or has a tensor of its own."""

    def __init__(self, config):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 12, 8))
        self.down_proj = nn.Parameter(torch.randn(4, 8, 6))
        self.slope = nn.Parameter(torch.ones(())) if config.learned else 1.0

    def _apply_gate(self, made):
        gate, rest = made.chunk(2, -1)
        return (
            gate * self.slope if torch.is_tensor(self.slope) else gate.softmax(-1)
        ) * rest

    def forward(self, x, index, weights):
        return x


@pytest.mark.parametrize("learned", [False, True])
def test_a_gate_that_is_no_formula_of_its_elements_is_refused(learned):
    config = SimpleNamespace(learned=learned, _experts_implementation_internal="eager")
    config._experts_implementation = "gnnplace"  # as `as_one_call` sets it
    model = use_experts_implementation(Odd)(config)
    x, index = torch.randn(4, 8), torch.zeros(4, 2, dtype=torch.int64)
    with (
        as_one_call(model),
        pytest.raises(CaptureError, match="a gate that mixes") as told,
    ):
        model(x, index, torch.ones(4, 2))
    assert "\n" not in str(told.value)


def test_wrong_sizes_and_activations_are_told():
    x, index, weights, up, down = drawn(2 * INNER)
    with pytest.raises(InputError, match=r"must be \[N, H\]"):
        gnnplace.experts(x, index, weights, down, up)
    with pytest.raises(InputError, match="no activation 'swish'; use one of silu"):
        gnnplace.experts(x, index, weights, up, down, "swish")


class Loop(nn.Module):
    """Experts as people write them."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights, index = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(index == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


def test_a_loop_over_experts_is_refused_with_the_line_to_write():
    with pytest.raises(
        CaptureError, match=r"gnnplace.experts\(x, index, weights, up, down, act\)"
    ):
        gnnplace.plan(Loop(), "nvswitch-h100-8", inputs=(torch.randn(8, 8),), budget=0)
