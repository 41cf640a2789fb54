"""Device maps under accelerate itself: its hooks, on claimed GPUs and with numbers on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
from torch import nn

import gnnplace
from gnnplace.errors import InputError
from gnnplace.problem.cluster import load_cluster
from gnnplace.run.device_maps.checking import check_device_map
from gnnplace.run.device_maps.making import device_map
from gnnplace.tracing.guards.claims import Claims, remove_device_guards
from gnnplace.tracing.models import capture
from tests.run.device_maps.mapped import build, captured, placed

IDS = build()[1]
SPREAD = {
    "words": 1,
    "places": 1,
    "blocks.0": 0,
    "blocks.1": 2,
    "blocks.2": 1,
    "head": 3,
}
SPLIT = {
    "words": 0,
    "places": 0,
    "blocks.0.norm": 0,
    "blocks.0.up": 1,
    "blocks.0.down": 1,
}
REST = {"blocks.1": 1, "blocks.2": 1, "head": 1, "unread": 1}


def on_claimed_gpus(devices):
    """Devices of each called module's outputs, as accelerate runs the model on GPUs not here."""
    seen = {}
    model, _ = build()
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, out, name=name: seen.update({name: out.device})
        )
    with Claims().made(), remove_device_guards(), torch.no_grad():
        dispatch_model(
            model, {name: f"cuda:{index}" for name, index in devices.items()}
        )
        model(IDS)
    return seen


def test_accelerate_runs_every_module_where_the_placement_has_it():
    """Its own hooks on claimed GPUs: every module's output is on the device of its ops."""
    program, problem = captured()
    placement = placed(problem, SPREAD)
    devices = device_map(program, problem, placement)
    seen = on_claimed_gpus(devices)
    for module, device in zip(problem.module, placement.device.tolist(), strict=True):
        if module is not None:
            assert seen[module] == torch.device("cuda", device)
    assert check_device_map(build()[0], devices, IDS) is None


def test_a_residual_that_is_split_fails_there_and_is_refused_here():
    """The classical trap: accelerate's hooks do not move the operands of a bare sum."""
    with pytest.raises(RuntimeError, match="same device"):
        on_claimed_gpus(SPLIT | REST)
    with pytest.raises(
        InputError, match=r"the code of module 'blocks.0' itself would mix"
    ):
        check_device_map(build()[0], SPLIT | REST, IDS)


def test_a_map_that_leaves_a_parameter_out_is_refused():
    """As accelerate does."""
    devices = {
        name: index for name, index in (SPLIT | REST).items() if name != "unread"
    }
    with pytest.raises(InputError, match=r"nothing in it holds 'unread.weight'"):
        check_device_map(build()[0], devices, IDS)


def test_what_cannot_be_checked_is_said():
    """A model that reads a number cannot run without numbers; it is left as it was."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(2, 2), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * x.abs().max().item()

    model = Reads()
    weight = model.layer.weight
    assert "DataDependent" in (
        check_device_map(model, {"layer": 0}, torch.ones(1, 2)) or ""
    )
    assert model.calls == 0
    assert model.layer.weight is weight
    assert not model.layer._forward_pre_hooks


HERE = {0: "cpu", 1: "disk"}  # one device that computes, and one that only keeps


def test_outputs_are_the_plain_models(tmp_path):
    """With numbers: the map's names cover the model, and its output is bitwise the same."""
    program, problem = captured(cluster="nvlink-a100-2")
    where = SPREAD | {"blocks.1": 0, "head": 0}
    found = device_map(program, problem, placed(problem, where))
    model, ids = build()
    with torch.no_grad():
        plain = model(ids)
        here = {name: HERE[index] for name, index in found.items()}
        dispatched = dispatch_model(model, here, offload_dir=tmp_path, force_hooks=True)
        np.testing.assert_array_equal(dispatched(ids).numpy(), plain.numpy())


def test_from_pretrained_takes_the_map(tmp_path):
    """A local folder of Hugging Face's, its parts mapped: loaded, and the same output."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 8}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    model.save_pretrained(tmp_path / "model")
    inputs = {"input_ids": IDS, "use_cache": False}
    program = capture(model, inputs, forward_only=True)
    options = gnnplace.CaptureOptions(
        forward_only=True, constraints={"by_module": True}
    )
    problem = gnnplace.profile(program, load_cluster("nvlink-a100-2"), options=options)
    found = device_map(program, problem, placed(problem, {"transformer.h.1": 1}))
    names = {
        "transformer.wte": 0,
        "transformer.wpe": 0,
        "transformer.drop": 0,
        "lm_head": 0,
    }
    ends = {"transformer.h.0": 0, "transformer.h.1": 1, "transformer.ln_f": 0}
    assert found == names | ends
    assert check_device_map(model, found, inputs) is None
    here = {name: HERE[index] for name, index in found.items()}
    loaded = GPT2LMHeadModel.from_pretrained(
        tmp_path / "model", device_map=here, offload_folder=str(tmp_path / "kept")
    )
    assert loaded.hf_device_map == here
    with torch.no_grad():
        np.testing.assert_array_equal(loaded(**inputs).logits, model(**inputs).logits)
