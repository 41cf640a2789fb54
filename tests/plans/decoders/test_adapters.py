"""Low-rank adapters: counted on modules made by hand, their bytes and seconds by hand."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.pytorch_utils import Conv1D

from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.registry import LAUNCHERS
from gnnplace.launch.searching import make_launch_plan
from gnnplace.models import find_model
from gnnplace.planning import plan_devices
from gnnplace.planning.fitting import fit_plan
from gnnplace.plans import TrainingJob
from gnnplace.plans.decoders.adapters import Adapters, parse_adapters
from gnnplace.plans.decoders.decoder import (
    DecoderSizes,
    ExpertLayers,
    catalogue_decoder,
    with_adapters,
)
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.search.draft import find_fullest_memory
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import price_spec
from gnnplace.zoo.hf import hugging_face

RANK = 4
TINY = DecoderSizes(
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    feed_forward=192,
    length=32,
    vocabulary=512,
    batch=8,
)
CLUSTER = plan_devices("8xH100", None, "auto")
WIDTHS = {
    "q": (64, 64),
    "k": (64, 32),
    "v": (64, 32),
    "o": (64, 64),
    "gate": (64, 192),
    "up": (64, 192),
    "down": (192, 64),
}
ADAPTERS = 2 * RANK * sum(sum(pair) for pair in WIDTHS.values())
MATRICES = 2 * sum(inputs * outputs for inputs, outputs in WIDTHS.values())
BESIDE = 2 * 512 * 64 + 5 * 64


class Adapted(nn.Module):
    """A frozen product with an adapter beside it."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Linear(linear.in_features, rank, bias=False)
        self.b = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + self.b(self.a(x))


class Layer(nn.Module):
    """The products of one of the tiny decoder's layers; two heads of queries share keys."""

    def __init__(self):
        super().__init__()
        self.products = nn.ModuleDict(
            {
                name: Adapted(nn.Linear(*pair, bias=False), RANK)
                for name, pair in WIDTHS.items()
            }
        )

    def forward(self, x):
        queries, keys, values = (self.products[name](x) for name in "qkv")
        heads = [
            t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in (queries, keys, values)
        ]
        keys, values = (t.repeat_interleave(2, dim=1) for t in heads[1:])
        scores = (heads[0] @ keys.transpose(-1, -2)).softmax(-1)
        x = x + self.products["o"]((scores @ values).transpose(1, 2).flatten(-2))
        inside = nn.functional.silu(self.products["gate"](x)) * self.products["up"](x)
        return x + self.products["down"](inside)


class Decoder(nn.Module):
    """The tiny decoder with adapters, its head frozen."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, 64).requires_grad_(False)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(64, 512, bias=False).requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens).requires_grad_()
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()


def count_parts(words="dp=1,microbatch_size=1", lora=f"r={RANK}", **changes):
    setting = make_pricing_setting(with_adapters(TINY, lora), CLUSTER, **changes)
    return find_fullest_memory(price_spec(setting, parse_spec(words)))


def test_trained_parameters_are_those_of_modules_made_by_hand():
    trained = sum(p.numel() for p in Decoder().parameters() if p.requires_grad)
    assert with_adapters(TINY, f"r={RANK}").trained_parameters == trained == ADAPTERS
    assert TINY.trained_parameters == TINY.parameters == MATRICES + BESIDE


def test_flops_are_those_that_torch_counts():
    """Of an example: the first layer's gradients of its input among them."""
    tokens = torch.zeros(1, TINY.length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        Decoder()(tokens).backward()
    adapted = with_adapters(TINY, f"r={RANK}")
    assert adapted.step_flops == pytest.approx(counter.get_total_flops(), rel=1e-9)
    assert adapted.step_flops < 0.8 * TINY.step_flops


@pytest.mark.parametrize(
    "name",
    [
        "HuggingFaceTB/SmolLM-135M",
        "EleutherAI/pythia-14m",
        "openai-community/gpt2",
        "microsoft/Phi-3-mini-4k-instruct",
        "zai-org/glm-4-9b-hf",
        "deepseek-ai/DeepSeek-V2-Lite",
    ],
)
def test_products_are_those_of_transformers(name):
    """What `target_modules="all-linear"` takes: all linear layers but the head; no experts."""
    sizes = with_adapters(catalogue_decoder(name), "r=1")
    with torch.device("meta"):
        model = hugging_face(find_model(name).name, batch=1, length=8).model
    trained = 0
    for path, module in model.named_modules():
        is_inside = any(part.isdigit() for part in path.split("."))
        if is_inside and isinstance(module, (nn.Linear, Conv1D)):
            trained += sum(module.weight.shape)
    assert sizes.trained_parameters == trained


def test_bytes_by_hand():
    """Adapters in float32 with gradients and moments; all else in half precision."""
    parts = count_parts()
    assert parts.parameters == parts.gradients == 4 * ADAPTERS
    assert parts.optimizer == 8 * ADAPTERS
    assert parts.frozen == 2 * (MATRICES + BESIDE)
    assert parts.buckets == 0


def test_quantized_weights_have_their_scales():
    """4 bits, and 0.127 of scales (QLoRA, section 3); tables and norms are not quantized."""
    assert Adapters(RANK, 4).matrix_bytes == pytest.approx(4.127 / 8, rel=1e-4)
    parts = count_parts(lora=f"r={RANK},bits=4")
    assert parts.frozen == pytest.approx(
        (4 + 8 / 64 + 32 / 16384) / 8 * MATRICES + 2 * BESIDE
    )
    assert parts.parameters == 4 * ADAPTERS


@pytest.mark.parametrize(
    "words", ["dp=1,microbatch_size=1", "dp=8,microbatch_size=1,zero=3"]
)
def test_the_largest_quantized_matrix_is_unpacked_at_work(words):
    """Of few words, so that layers and not the loss have the most at work."""
    working = {}
    for lora in ("r=4", "r=4,bits=4"):
        setting = make_pricing_setting(
            with_adapters(replace(TINY, vocabulary=8), lora), CLUSTER
        )
        priced = price_spec(setting, parse_spec(words))
        gathered = (
            3
            * setting.decoder.adapters.matrix_bytes
            * MATRICES
            / 2
            * ("zero=3" in words)
        )
        working[lora] = find_fullest_memory(priced).working - gathered
    assert working["r=4,bits=4"] - working["r=4"] == pytest.approx(2 * 64 * 192)


def test_zero_shares_frozen_parameters():
    whole, shared = (
        count_parts("dp=8,microbatch_size=1,zero=1"),
        count_parts("dp=8,zero=3"),
    )
    assert whole.frozen == 2 * (MATRICES + BESIDE)
    assert whole.optimizer == pytest.approx(ADAPTERS)
    assert shared.frozen == pytest.approx(2 * (MATRICES + BESIDE) / 8)
    assert shared.parameters == pytest.approx(4 * ADAPTERS / 8)


def test_shards_part_one_matrix_of_an_adapter():
    """A of what widens and B of what narrows are whole on both shards."""
    wide = [sum(WIDTHS[name]) for name in ("q", "k", "v", "gate", "up")]
    outputs = sum(WIDTHS[name][1] for name in ("q", "k", "v", "gate", "up"))
    narrow = sum(WIDTHS[name][0] for name in ("o", "down"))
    everything = sum(wide) + sum(sum(WIDTHS[name]) for name in ("o", "down"))
    elements = 2 * RANK * (everything - outputs / 2 - narrow / 2)
    parts = count_parts("tp=2,microbatch_size=1")
    assert parts.parameters == 4 * elements
    assert parts.frozen == 2 * (MATRICES / 2 + 2 * 512 * 64 / 2 + 5 * 64)


def test_a_tied_table_is_held_once():
    tied = replace(TINY, tied=True)
    setting = make_pricing_setting(with_adapters(tied, "r=4"), CLUSTER)
    words = {"alone": "pp=1,microbatch_size=1", "apart": "pp=2,microbatch_size=1"}
    alone, apart = (
        price_spec(setting, parse_spec(text)).costs for text in words.values()
    )
    table = 2 * 512 * 64
    assert alone[0].terms.frozen == 2 * MATRICES + table + 2 * 5 * 64
    assert sum(cost.terms.frozen for cost in apart) == alone[0].terms.frozen + table


@pytest.mark.parametrize(
    "words", ["dp=8,microbatch_size=1", "dp=8,microbatch_size=1,zero=3"]
)
def test_a_step_is_shorter_by_the_gradients_of_frozen_weights(words):
    sizes = catalogue_decoder("Qwen/Qwen3-8B", 8)
    steps = {}
    for lora in (None, "r=16", "r=16,bits=4"):
        setting = make_pricing_setting(with_adapters(sizes, lora), CLUSTER)
        steps[lora] = price_spec(setting, parse_spec(words))
    assert steps["r=16"].step_time < steps[None].step_time
    weights = {lora: priced.costs[0].weights for lora, priced in steps.items()}
    assert weights["r=16"] < 0.2 * weights[None]
    assert weights["r=16,bits=4"] == pytest.approx(weights["r=16"])
    # Unpacking takes time; under ZeRO 3 a quarter of the bytes is gathered.
    is_sharded = "zero=3" in words
    assert (steps["r=16,bits=4"].step_time < steps["r=16"].step_time) == is_sharded
    exchanged = {
        lora: priced.costs[0].exchanges.scattered for lora, priced in steps.items()
    }
    assert is_sharded or exchanged["r=16"] < 0.05 * exchanged[None]


def test_experts_are_frozen_and_have_no_adapters():
    sizes = catalogue_decoder("Qwen/Qwen3-30B-A3B", 8)
    adapted = with_adapters(sizes, "r=8")
    assert adapted.trained_parameters == 48 * 8 * (2 * (2048 + 4096) + 2 * (2048 + 512))
    words = parse_spec("dp=8,ep=8,microbatch_size=1")
    costs = [
        price_spec(make_pricing_setting(each, CLUSTER), words).costs[0]
        for each in (sizes, adapted)
    ]
    assert costs[1].terms.frozen < costs[0].terms.parameters
    assert costs[1].backward + costs[1].weights < costs[0].backward + costs[0].weights


def test_experts_are_in_4_bits_where_that_is_asked_for():
    """What bitsandbytes does alone leaves them in half precision; they are unpacked together."""
    sizes = replace(TINY, experts=ExpertLayers(8, 2, 96), vocabulary=8)
    parts, steps = {}, {}
    for lora in ("r=4", "r=4,bits=4", "r=4,bits=4,expert_bits=4"):
        setting = make_pricing_setting(with_adapters(sizes, lora), CLUSTER)
        priced = price_spec(setting, parse_spec("dp=1,microbatch_size=1"))
        parts[lora], steps[lora] = find_fullest_memory(priced), priced.step_time
    half, packed = parts["r=4,bits=4"], parts["r=4,bits=4,expert_bits=4"]
    experts = 2 * 8 * 3 * 64 * 96
    dense = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 8 * 64)  # the router among them
    scales = (4 + 8 / 64 + 32 / 16384) / 8
    assert parts["r=4"].frozen - half.frozen == pytest.approx((2 - scales) * dense)
    assert half.frozen - packed.frozen == pytest.approx((2 - scales) * experts)
    unpacked = 2 * 8 * 2 * 64 * 96  # gate and up of all experts are one tensor
    assert packed.working - parts["r=4"].working == pytest.approx(unpacked)
    assert steps["r=4"] < steps["r=4,bits=4"] < steps["r=4,bits=4,expert_bits=4"]
    with pytest.raises(InputError, match="expert_bits: the model has no experts"):
        with_adapters(TINY, "r=4,bits=4,expert_bits=4")


def test_products_that_are_named_alone_have_adapters():
    named = with_adapters(TINY, f"r={RANK},targets=v+q")
    assert str(named.adapters) == f"r={RANK},targets=q+v"
    trained = 2 * RANK * sum(sum(WIDTHS[name]) for name in "qv")
    assert named.trained_parameters == trained
    parts = count_parts(lora=f"r={RANK},targets=q+v")
    assert (parts.parameters, parts.frozen) == (4 * trained, 2 * (MATRICES + BESIDE))
    # Matrices without adapters are in 4 bits, too, and unpacked.
    packed = count_parts(lora=f"r={RANK},targets=q+v,bits=4")
    every = count_parts(lora=f"r={RANK},bits=4")
    assert packed.frozen == every.frozen
    assert with_adapters(TINY, "r=4,targets=q+k+v+o+gate+up+down").adapters == Adapters(
        RANK
    )


@pytest.mark.parametrize(
    ("model", "targets", "message"),
    [
        ("openai-community/gpt2", "gate", "no layer of the model has a product 'gate'"),
        ("microsoft/Phi-3-mini-4k-instruct", "q+v", "q, k, v are made by one product"),
        ("mistralai/Mixtral-8x7B-v0.1", "q+up", "'up'; its experts have no adapters"),
        ("deepseek-ai/DeepSeek-V2-Lite", "k", "k, v are made by one product"),
    ],
)
def test_products_that_a_model_has_not_are_refused(model, targets, message):
    with pytest.raises(InputError, match=message):
        with_adapters(catalogue_decoder(model), f"r=8,targets={targets}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16", "'16': must be r=RANK"),
        ("bits=4", "needs a rank"),
        ("r=8,bits=8", "needs a rank from 1 to 65,536, and bits=4 or bits=16"),
        ("r=8,r=8", "'r' is repeated"),
        (
            "r=8,targets=attention",
            "'attention' is no product of a layer; name some of q.k",
        ),
        ("r=8,targets=q,targets=v", "'targets' is repeated"),
        ("r=8,expert_bits=4", "expert_bits=4 needs bits=4"),
        ("r=0", "'r=0': must be r=RANK"),
    ],
)
def test_malformed_words_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        TrainingJob("Qwen/Qwen3-8B", lora=text)


def test_words_read_as_they_are_written():
    for text in ("r=16", "r=16,bits=4", "r=16,targets=q+v,bits=4,expert_bits=4"):
        assert str(parse_adapters(text)) == text
    assert parse_adapters("r=16,bits=16,targets=all") == Adapters(16)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_no_launcher_drops_adapters(name):
    setting = make_pricing_setting(
        with_adapters(catalogue_decoder("llama-3.1-8b", 8), "r=16"), CLUSTER
    )
    plan = make_launch_plan(setting, parse_spec("dp=8,microbatch_size=1,batch=256"))
    if name in ("accelerate", "deepspeed"):  # the model is the script's
        assert LAUNCHERS[name].write(plan, [], 8)
    else:
        with pytest.raises(
            InfeasibleError, match=rf"{name}: .* no adapters \(--lora r=16\)"
        ):
            LAUNCHERS[name].write(plan, [], 8)


def test_what_does_not_fit_may_fit_with_adapters():
    answer = fit_plan(
        TrainingJob("llama-3.1-8b"),
        plan_devices("1xH100", None, "auto"),
        parse_spec("dp=1,microbatch_size=1,recompute=full"),
    )
    assert not answer.fits
    kinds = [(change.kind, change.change) for change in answer.changes]
    assert kinds[-2:] == [
        ("trained parameters", "--lora r=16"),
        ("trained parameters", "--lora r=16,bits=4"),
    ]


def test_a_plan_carries_its_adapters(tmp_path, capsys):
    """Found, written, read again, and taken to a launcher."""
    path, file = tmp_path / "plan.json", tmp_path / "ds.json"
    question = [
        "plan",
        "Qwen/Qwen3-8B",
        "--cluster",
        "8xH100",
        "--launcher",
        "accelerate",
    ]
    assert run([*question, "--lora", "r=16", "-o", str(path)]) == 0
    text = capsys.readouterr().out
    assert "bf16-mixed, adamw, LoRA r=16 (batch, " in text
    assert "LoRA r=16 on all linear layers but the head: 43,646,976" in text
    data = json.loads(path.read_text())
    assert data["lora"] == "r=16"
    assert run(["plan", *question[1:4], "--given", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time"] == pytest.approx(
        data["step_time"]
    )
    assert run(["convert", str(path), "--to", "accelerate", "-o", str(file)]) == 0
    assert (
        "not carried: adapters: the script makes them, as peft"
        in capsys.readouterr().out
    )
    assert run(["convert", str(path), "--to", "nanotron", "-o", str(file)]) == 3
    assert "nanotron: its file as gnnplace writes it" in capsys.readouterr().err
    assert run(["plan", *question[1:4], "--given", str(path), "--lora", "r=8"]) == 2
    assert "it is for 'r=16', not 'r=8'" in capsys.readouterr().err


def test_a_captured_model_has_its_own_adapters(capsys):
    assert run(["plan", "mlp", "--cluster", "8xH100", "--lora", "r=8"]) == 2
    assert "give module:callable of it with its adapters" in capsys.readouterr().err
