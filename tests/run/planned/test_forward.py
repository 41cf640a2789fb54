from __future__ import annotations

import copy
import tempfile
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

import gnnplace
from gnnplace.errors import InputError, MismatchError
from gnnplace.planning.sharded import read_shard_plan
from gnnplace.sharding.captured.costs import MeshMachine
from tests.sharding.mesh_processes import on_processes

SLOW = MeshMachine(flops=1e6, bandwidth=1e6)
"""A machine on which splitting pays even for tiny models."""


class Model(nn.Module):
    """Tied table, attention, an addition in place, a buffer, a constant, dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("position", torch.randn(1, 8, 16))
        self.scale = torch.tensor(0.5)

    def forward(self, ids, *, bias=None):
        rows, length = ids.shape
        x = self.table(ids) + self.position[:, :length]
        heads = [
            f(x).view(rows, length, 4, 4).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        ]
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + y.transpose(1, 2).reshape(rows, length, 16)
        x += 1.0
        x = x + self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))
        logits = self.head(x * self.scale)
        return {"logits": logits if bias is None else logits + bias, "length": length}


def pair(dropout=0.0):
    torch.manual_seed(0)
    model = Model(dropout)
    return (
        model,
        copy.deepcopy(model),
        torch.randint(32, (4, 8)),
        torch.randint(32, (4, 8)),
    )


def loss_of(output, target):
    return functional.cross_entropy(output["logits"].flatten(0, 1), target.flatten())


def worst(split, whole):
    """Largest error of a gradient, relative to the largest gradient."""
    largest = max(p.grad.abs().max() for p in whole.parameters())
    pairs = zip(split.parameters(), whole.parameters(), strict=True)
    return float(
        max((a.grad.full_tensor() - b.grad).abs().max() for a, b in pairs) / largest
    )


def words_of(plan):
    return {layer.name: layer.words for layer in plan.split.words}


def train(mesh):
    """Losses of split and whole model over three steps of AdamW, and errors of gradients."""
    split, whole, ids, target = pair()
    plan = gnnplace.shard(split, ids, mesh, machine=SLOW)
    assert plan.apply(split) is split
    assert all(isinstance(p.data, DTensor) for p in split.parameters())
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (split, whole)]
    losses, errors = [], []
    for _ in range(3):
        both = []
        for model, optimizer in zip((split, whole), optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(model(ids), target)
            loss.backward()
            both.append(loss.item())
        errors.append(worst(split, whole))
        for optimizer in optimizers:
            optimizer.step()
        losses.append(both)
    return losses, errors, words_of(plan)


@pytest.mark.parametrize("count", [2, 4])
def test_a_split_model_trains_like_the_whole(count):
    losses, errors, words = on_processes(count, lambda rank: train(count))[0]
    assert max(errors) < 1e-4
    assert losses[2][0] < losses[0][0]
    for split, whole in losses:
        assert split == pytest.approx(whole, rel=1e-5)
    assert any("over" in text for text in words.values())


def test_a_mesh_of_torch():
    def work(rank):
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
        return train(mesh)[1]

    assert max(on_processes(2, work)[0]) < 1e-4


def variations(rank):
    split, whole, ids, target = pair()
    gnnplace.shard(split, ids, 2, machine=SLOW).apply(split)
    found = {}
    with torch.no_grad():
        found["no gradient"] = (
            (split(ids)["logits"] - whole(ids)["logits"]).abs().max().item()
        )
        half = ids[:2, :4]
        found["other shape"] = (
            (split(half)["logits"] - whole(half)["logits"]).abs().max().item()
        )
    for model in (split, whole):
        for part in (ids, ids.flip(0)):  # gradients add up over two steps
            loss_of(model(part), target).backward()
    found["accumulated"] = worst(split, whole)
    found["length"] = split(ids)["length"]
    try:
        split(ids[:3])
    except MismatchError as error:
        found["odd"] = str(error)
    try:
        split(ids, bias=torch.ones(32))
    except MismatchError as error:
        found["layers"] = str(error)
    try:
        gnnplace.shard(whole, ids, 2, machine=SLOW).apply(split)
    except InputError as error:
        found["twice"] = str(error)
    return found


def test_other_inputs_other_modes_and_what_cannot_be():
    found = on_processes(2, variations)[0]
    assert found["no gradient"] < 1e-5
    assert found["other shape"] < 1e-5
    assert found["accumulated"] < 1e-4
    assert found["length"] == 8
    assert "make a plan for this one" in found["layers"]
    assert "once" in found["twice"]
    assert "odd" not in found or "equal parts" in found["odd"]


def with_loss_and_dropout(rank):
    split, whole, ids, target = pair(dropout=0.5)
    torch.manual_seed(100 + rank)  # processes need not be seeded alike
    plan = gnnplace.shard(split, (ids, target), 2, loss=loss_of, machine=SLOW)
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        again = read_shard_plan(Path(folder) / "plan.json")
    try:
        again.apply(copy.deepcopy(whole))
    except (InputError, MismatchError) as error:
        refused = str(error)
    again.apply(split, loss=loss_of)
    split(ids, target)  # traced, random numbers aligned
    torch.manual_seed(7)
    a = split(ids, target)
    a.backward()
    torch.manual_seed(7)
    b = loss_of(whole(ids), target)
    b.backward()
    return a.item(), b.item(), worst(split, whole), refused


def test_loss_as_a_layer_and_dropout_as_on_one_device():
    a, b, error, refused = on_processes(2, with_loss_and_dropout)[0]
    assert a == pytest.approx(b, rel=1e-5)
    assert error < 1e-4
    assert "loss=" in refused


def test_the_first_process_has_the_say():
    def work(rank):
        torch.manual_seed(rank)  # processes start with other parameters
        model = nn.Linear(4, 4)
        first = torch.tensor(0.0) + model.weight.detach().sum()
        dist.broadcast(first, 0)
        gnnplace.shard(model, torch.ones(2, 4), 2, machine=SLOW).apply(model)
        return float(first), float(model.weight.full_tensor().detach().sum())

    for first, mine in on_processes(2, work):
        assert mine == pytest.approx(first, rel=1e-5)


def test_without_processes_it_says_how_to_start_them():
    model = nn.Linear(4, 4)
    plan = gnnplace.shard(model, torch.ones(2, 4), 2)
    with pytest.raises(InputError, match="torchrun --nproc-per-node 2"):
        plan.apply(model)
    with pytest.raises(InputError, match="DeviceMesh"):
        gnnplace.shard(model, torch.ones(2, 4), "two")  # type: ignore[arg-type]


class Fused(nn.Module):
    """Queries, keys and values in one product; batch norm."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        heads = [
            p.unflatten(-1, (4, 4)).transpose(1, 2)
            for p in self.qkv(x).chunk(3, dim=-1)
        ]
        y = functional.scaled_dot_product_attention(*heads)
        return self.norm(self.out(y.transpose(1, 2).flatten(2)).mean(1))


def forced(rank):
    """Heads of a fused product over two devices, batch over two."""
    torch.manual_seed(0)
    split = Fused()
    whole, x = copy.deepcopy(split), torch.randn(4, 6, 16)
    plan = gnnplace.shard(split, x, 4, machine=MeshMachine(flops=1.0, bandwidth=1e9))
    plan.apply(split)
    for model in (split, whole):
        model(x).square().mean().backward()
    statistics = (split.norm.running_var - whole.norm.running_var).abs().max().item()
    return worst(split, whole), statistics, words_of(plan)


def test_fused_heads_and_batch_norm_over_four():
    error, statistics, words = on_processes(4, forced)[0]
    assert error < 1e-4
    assert statistics < 1e-5
    assert words["qkv"] in ("batch over 2, heads over 2", "batch over 4")


def encoder(rank):
    """An encoder of torch's own layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 64, dropout=0.0, batch_first=True)
    split = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    whole, x = copy.deepcopy(split), torch.randn(2, 6, 16)
    plan = gnnplace.shard(split, x, 2, machine=MeshMachine(flops=1e6, bandwidth=1e6))
    plan.apply(split)
    for model in (split, whole):
        model(x).square().mean().backward()
    return worst(split, whole), words_of(plan)


def test_an_encoder_of_torch_is_split_along_its_heads():
    error, words = on_processes(2, encoder)[0]
    assert error < 1e-4
    heads = [text for name, text in words.items() if "multi_head" in name]
    assert heads == ["heads over 2"] * 2


class Images(nn.Module):
    """Convolutions with functions that change their input in place, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(8, 6)
        self.body[0].bias.requires_grad_(False)

    def forward(self, x):
        y = self.body(x)
        return self.head(functional.adaptive_avg_pool2d(y, 1).flatten(1))


def images(machine):
    torch.manual_seed(0)
    split = Images()
    whole, x = copy.deepcopy(split), torch.randn(4, 4, 8, 8)
    plan = gnnplace.shard(split, x, 2, machine=machine)
    plan.apply(split)
    for model in (split, whole):
        model(x).square().mean().backward()
    assert split.body[0].bias.grad is None
    pairs = zip(split.parameters(), whole.parameters(), strict=True)
    trained = [(a, b) for a, b in pairs if b.requires_grad]
    errors = [(a.grad.full_tensor() - b.grad).abs().max().item() for a, b in trained]
    return max(errors), {*words_of(plan).values()}


@pytest.mark.parametrize("bandwidth", [1e5, 1e9])
def test_convolutions(bandwidth):
    machine = MeshMachine(flops=1e6, bandwidth=bandwidth)
    error, words = on_processes(2, lambda rank: images(machine))[0]
    assert error < 1e-5
    assert any("over 2" in text for text in words)


def penalised(rank):
    """Errors of gradients where terms of the parameters stand beside the loss; and of a copy's."""
    split, whole, ids, target = pair()
    plan = gnnplace.shard(split, (ids, target), 2, machine=SLOW, loss=loss_of)
    plan.apply(split, loss=loss_of)(ids, target)
    twin, found = copy.deepcopy(split), []
    for ours in (split, twin):
        whole.zero_grad()
        for model in (ours, whole):
            terms = (
                sum(p.square().sum() for p in model.parameters())
                + model.up.weight.norm()
            )
            loss = model(ids, target) if model is ours else loss_of(model(ids), target)
            (loss + 0.1 * terms).backward()
        found.append(worst(ours, whole))
    return found


def test_terms_of_parameters_stand_beside_a_loss_and_a_split_model_is_copied():
    assert max(on_processes(2, penalised)[0]) < 1e-4


def doubled(self, ids):
    return {"logits": 2.0 * Model.forward(self, ids)["logits"]}


def beside_torch_compile(how):
    """The error of gradients of a model that `torch.compile` or the script itself has wrapped."""
    split, whole, ids, target = pair()
    if how == "forward of its own":
        for model in (split, whole):
            model.forward = types.MethodType(doubled, model)
    if how == "wrapped":
        split = torch.compile(split, backend="eager")
    elif how == "compiled before":
        split.compile(backend="eager")
    gnnplace.shard(split, ids, 2, machine=SLOW).apply(split)
    if how == "compiled after":
        split.compile(backend="eager")
    for model in (split, whole):
        loss_of(model(ids), target).backward()
    return worst(split, whole)


def test_a_split_model_may_be_compiled_or_have_a_forward_of_its_own():
    ways = ("forward of its own", "wrapped", "compiled before", "compiled after")
    found = on_processes(
        2, lambda rank: {how: beside_torch_compile(how) for how in ways}
    )[0]
    assert max(found.values()) < 1e-4, found
