"""Bytes of optimizers' states, counted by hand and held by `torch.optim`."""

import pytest
import torch
from torch import nn

from gnnplace.costs import OPTIMIZERS, get_optimizer_kind, list_newton_schulz_products
from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import price, price_spec
from gnnplace.problem.cluster import make_preset

TINY = DecoderSizes(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    feed_forward=192,
    length=128,
    vocabulary=512,
    batch=8,
)
MATRICES = 2 * (64 * (64 + 2 * 32 + 64) + 3 * 64 * 192)
VECTORS = 2 * 2 * 64 + 64
TABLES = 2 * 512 * 64


class Layer(nn.Module):
    """The parameters of one of the tiny decoder's layers."""

    def __init__(self):
        super().__init__()
        widths = (
            (64, 64),
            (64, 32),
            (64, 32),
            (64, 64),
            (64, 192),
            (64, 192),
            (192, 64),
        )
        self.products = nn.ModuleList([nn.Linear(*pair, bias=False) for pair in widths])
        self.norms = nn.ParameterList([nn.Parameter(torch.ones(64)) for _ in range(2)])


def tiny_modules():
    """The parameters of the tiny decoder: its layers, its tables, its last norm."""
    layers = nn.ModuleList([Layer(), Layer()])
    tables = nn.ParameterList([nn.Parameter(torch.ones(512, 64)) for _ in range(2)])
    return nn.ModuleList([layers, tables, nn.LayerNorm(64, bias=False)])


def state_of(optimizer):
    """Bytes of an optimizer's state after a step, without its counters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [
        t for state in optimizer.state.values() for t in state.values() if t.numel() > 1
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def optimizer_bytes(name, words="dp=1,microbatch_size=1", **changes):
    """Bytes of the optimizer's state of the tiny decoder on each device of a plan."""
    setting = make_pricing_setting(
        TINY, make_preset("nvswitch-h100-8"), optimizer=name, **changes
    )
    priced = price_spec(setting, parse_spec(words))
    return [cost.terms.optimizer for cost in priced.costs]


def test_parameters_of_the_tiny_decoder():
    parameters = sum(parameter.numel() for parameter in tiny_modules().parameters())
    assert parameters == TINY.parameters == MATRICES + VECTORS + TABLES


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", torch.optim.AdamW),
        ("adam", torch.optim.Adam),
        ("adafactor", torch.optim.Adafactor),
        ("sgd", torch.optim.SGD),
        ("sgd-momentum", lambda parameters: torch.optim.SGD(parameters, momentum=0.9)),
    ],
)
def test_state_is_that_of_torch(name, make):
    assert optimizer_bytes(name) == pytest.approx(
        [state_of(make(tiny_modules().parameters()))]
    )


def test_state_of_muon_is_that_of_torch():
    """Muon takes the matrices of layers, AdamW all else."""
    model = tiny_modules()
    matrices = [p for p in model[0].parameters() if p.dim() == 2]
    beside = [
        p for p in model.parameters() if all(p is not matrix for matrix in matrices)
    ]
    kept = state_of(torch.optim.Muon(matrices)) + state_of(torch.optim.AdamW(beside))
    assert optimizer_bytes("muon") == pytest.approx([kept])
    assert kept == 4 * MATRICES + 8 * (VECTORS + TABLES)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # Two bytes, and two scales of four bytes for every 256 numbers.
        ("adamw-8bit", (2 + 8 / 256) * TINY.parameters),
        ("lion", 4 * TINY.parameters),
        # Rows and columns of seven matrices a layer, and of two tables; vectors whole.
        (
            "adafactor",
            4 * (2 * (128 + 96 + 96 + 128 + 3 * 256) + 2 * (512 + 64) + VECTORS),
        ),
    ],
)
def test_state_by_hand(name, size):
    assert optimizer_bytes(name) == pytest.approx([size])


def test_zero_shares_the_state():
    (alone,) = optimizer_bytes("muon")
    (shared,) = optimizer_bytes("muon", "dp=8,microbatch_size=1,zero=1")
    assert shared == pytest.approx(alone / 8)
    first, last = optimizer_bytes("muon", "pp=2,microbatch_size=1")
    # The last norm is the last stage's.
    assert last - first == pytest.approx(8 * 64)
    assert first + last == pytest.approx(alone)


def test_half_parameters_have_a_float32_copy():
    (alone,) = optimizer_bytes("lion", precision="bf16-master")
    assert alone == pytest.approx((4 + 4) * TINY.parameters)
    (half,) = optimizer_bytes("lion", precision="bf16-true")
    assert half == pytest.approx(2 * TINY.parameters)


def test_the_update_moves_the_bytes_of_its_optimizer():
    setting = make_pricing_setting(TINY, make_preset("nvswitch-h100-8"))
    stream = setting.framework.kernels.stream(1.0)
    updates = {}
    for name in OPTIMIZERS:
        changed = make_pricing_setting(
            TINY, make_preset("nvswitch-h100-8"), optimizer=name
        )
        (cost,) = price_spec(changed, parse_spec("dp=1,microbatch_size=1")).costs
        updates[name] = cost.update / stream / TINY.parameters
    # AdamW reads gradient, parameter and two moments, and writes three; SGD reads two, writes one.
    assert updates["adamw"] - updates["sgd"] == pytest.approx(28 - 12)
    assert updates["adamw"] - updates["lion"] == pytest.approx(28 - 20)
    assert updates["sgd-momentum"] == pytest.approx(updates["lion"])
    assert updates["adafactor"] > updates["adamw"] > updates["adamw-8bit"]
    # Products beside the bytes of the momentum.
    assert updates["muon"] > updates["adamw"]


def test_newton_schulz_has_the_narrow_side_as_rows():
    shapes = list_newton_schulz_products(96, 32)
    assert shapes == list_newton_schulz_products(32, 96)
    assert shapes[:3] == [(32, 32, 96), (32, 32, 32), (32, 96, 32)]
    assert len(shapes) == 15


def test_every_optimizer_names_its_source():
    assert all(kind.source for kind in OPTIMIZERS.values())
    with pytest.raises(
        InputError, match="'lamb': unknown; use one of adamw, adam, adamw-8bit"
    ):
        get_optimizer_kind("lamb")


def test_quantized_states_do_not_leave_the_gpu():
    setting = make_pricing_setting(
        TINY,
        make_preset("nvswitch-h100-8"),
        framework_name="megatron-lm",
        optimizer="adamw-8bit",
    )
    answer = price(
        setting, parse_spec("dp=8,zero=1,microbatch_size=1,offload=optimizer")
    )
    assert (
        answer.reason == "offload=optimizer: adamw-8bit steps on GPUs alone; take adamw"
    )
