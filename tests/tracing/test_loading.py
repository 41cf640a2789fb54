"""Models by name, from modules, files, packages and configurations."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

import gnnplace
from gnnplace import zoo
from gnnplace.errors import InputError
from gnnplace.run.planned import run_plan
from gnnplace.tracing import capture_model, make_workload
from gnnplace.tracing.loading import cut_workload, find_callable, load, make_shares

SOURCE = """
import torch
from torch import nn

def plain():
    return nn.Linear(4, 2), torch.ones(6, 4)

def sized(batch=8, width=4):
    return nn.Linear(width, 2), (torch.ones(batch, width), torch.zeros(batch, 2)), nn.MSELoss()

def wrong():
    return 3

class Holder:
    @staticmethod
    def make():
        return nn.Linear(1, 1), {"input": torch.ones(2, 1)}

def failing():
    raise ValueError("no data")

number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that is only in the current directory."""
    (tmp_path / "own_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    return "own_models"


def test_zoo_names_with_and_without_prefix() -> None:
    a, b = load("mlp?width=16&depth=1"), load("zoo:mlp?width=16&depth=1")
    assert a.name == b.name == "mlp"
    assert all(
        torch.equal(x, y)
        for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True)
    )
    assert (
        load("mlp?width=16&depth=1", share=4).inputs[0].shape[0]
        == zoo.default_batch("mlp") // 4
    )


def test_callables(module: str) -> None:
    path = list(sys.path)
    work = load(f"{module}:plain")
    assert work.inputs[0].shape == (6, 4)
    assert work.name == "Linear"
    assert load(f"{module}:plain", share=3).inputs[0].shape == (2, 4)
    sized = load(f"{module}:sized?width=5", share=2)
    assert sized.inputs[0].shape == (4, 5)
    assert sized.loss is not None
    assert load(f"{module}:sized?batch=6", share=2).inputs[0].shape == (3, 4)
    assert load(f"{module}:Holder.make").inputs["input"].shape == (2, 1)
    assert sys.path == path


def test_hugging_face(tmp_path: Path) -> None:
    work = load(
        "hf:gpt2?n_layer=1&n_embd=32&n_head=2&vocab_size=50&batch=4&length=8", share=2
    )
    assert work.inputs["input_ids"].shape == (2, 8)
    fields = {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32}
    fields |= {"num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    for spec in (f"hf:{path}", f"hf:{tmp_path}"):
        work = load(spec)
        assert type(work.model).__name__ == work.name == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nothing", "use a name of the catalogue, a zoo name"),
        ("zoo:nothing", "no such workload"),
        ("mlp?depht=3", "no size 'depht'"),
        ("mlp?depth", "is not NAME=VALUE"),
        ("mlp?batch=many", "batch 'many' is not a positive number"),
        ("mlp?batch=0", "batch 0 is not a positive number"),
        ("mlp?width=wide", "TypeError"),
        ("hf:gpt2?n_layer=many", "n_layer"),
        ("hf:blip", "no example inputs are known"),
        ("hf:nothing", "no such configuration; nothing is downloaded"),
        (
            "hf:meta-llama/Llama-2-8b",
            "nearest names are .*meta-llama/Llama-2-7b, .* is downloaded",
        ),
        (
            "hf:google-bert/bert-bass-cased",
            "nearest names are google-bert/bert-base-cased",
        ),
        ("hf:Qwen/Qwen3-0.7B", "nearest names are .*Qwen/Qwen3-0.6B"),
        ("hf:.", "the folder has no config.json"),
        ("hf:gpt2?n_layers=3", "no field 'n_layers'"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("own_models:nothing", "no callable 'nothing'"),
        ("own_models:plane", "no callable 'plane'; did you mean 'plain'?"),
        (
            "own_models.py",
            "name the function that builds the model too, as in own_models.py:build",
        ),
        ("elsewhere/own_models.py:plain", "there is no file 'elsewhere/own_models.py'"),
        ("inceptoin", "did you mean 'inception'?"),
        ("own_models:number", "no callable 'number'"),
        ("own_models:wrong", "must return"),
        ("own_models:sized?heigth=3", "unexpected keyword argument 'heigth'"),
        (
            "own_models:failing",
            r"failing failed: ValueError: no data at .*own_models.py:20",
        ),
    ],
)
def test_mistakes_are_named(module: str, spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(spec)


def test_a_batch_that_cannot_be_divided_is_refused(module: str) -> None:
    with pytest.raises(InputError, match="a batch of 6 cannot be cut into 4"):
        load(f"{module}:plain", share=4)


def test_cutting_leaves_tensors_without_the_batch_alone() -> None:
    work = zoo.Workload("w", torch.nn.Identity(), (torch.ones(4, 2), torch.ones(3), 7))
    x, table, number = cut_workload(work, 2).inputs
    assert (x.shape, table.shape, number) == ((2, 2), (3,), 7)


def test_shares_are_the_batch_in_order() -> None:
    """Put together they are the whole."""
    workload = load("mlp?batch=8")
    whole = torch.cat([part[0] for part in make_shares(workload, 4)])
    assert torch.equal(whole, workload.inputs[0])  # type: ignore[index]


ADAPTED = """
import torch
from torch import nn

def build(batch=2):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.register_module("more", nn.Linear(4, 4).to(model[0].weight.device).double())
    return model.to("cpu").half().float(), torch.zeros(batch, 4)
"""


def test_a_model_that_moves_its_layers_is_made_without_numbers(tmp_path: Path) -> None:
    """As adapters move theirs to the device and the type of what they adapt."""
    (tmp_path / "adapted.py").write_text(ADAPTED, encoding="utf-8")
    model = load(f"{tmp_path / 'adapted.py'}:build", fake=True).model
    assert model[0].weight is model[1].weight
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert len([*model.parameters()]) == 5


ON_META = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def build():
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=64, use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    ids = torch.ones(2, 8, dtype=torch.int64)
    return model, {"input_ids": ids, "labels": ids}
"""


def test_a_callable_that_makes_a_model_on_meta_is_captured_and_not_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "large.py").write_text(ON_META, encoding="utf-8")
    name = f"{tmp_path / 'large.py'}:build"
    workload = make_workload(name, fake=True)
    tensors = [*workload.model.parameters(), *pytree.tree_leaves(workload.inputs)]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert capture_model(name, fake=True).ops
    plan = gnnplace.plan(name, "cpu:2")[0]
    with pytest.raises(InputError, match="is on the meta device, without numbers"):
        run_plan(plan, name)


@pytest.mark.parametrize("name", ["hf:convnext", "hf:vit"])
def test_models_that_read_numbers_while_they_are_made(name: str) -> None:
    """Rates of dropped paths, numbers drawn until they are within bounds."""
    made = load(name, fake=True)
    assert all(isinstance(each, FakeTensor) for each in made.model.parameters())


@pytest.mark.parametrize("name", zoo.list_workload_names())
def test_every_model_of_the_zoo_is_made_without_numbers(name: str) -> None:
    made = load(name, fake=True)
    assert all(isinstance(each, FakeTensor) for each in made.model.parameters())


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path) -> Iterator[None]:
    """What a test imports of its own is not there for the next; the path is as it was."""
    known, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - known:
        of = vars(sys.modules[name])
        if any(
            str(place).startswith(str(tmp_path))
            for place in (of.get("__file__"), *of.get("__path__", ()))
        ):
            del sys.modules[name]
    assert sys.path == path


def _written(path: Path, value: int, above: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{above}\ndef build():\n    return {value}\n")
    return path


@pytest.mark.parametrize(
    "name", ["misc_a.py", "./misc_a.py", "sub/misc_b.py", "code.py"]
)
def test_a_file_by_its_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = _written(tmp_path / name, 3)
    assert find_callable(name, "build", name)() == 3
    assert find_callable(str(path), "build", name)() == 3  # absolute


def test_two_files_of_one_name(tmp_path: Path) -> None:
    first, second = (
        _written(tmp_path / "a/misc_c.py", 1),
        _written(tmp_path / "b/misc_c.py", 2),
    )
    assert find_callable(str(first), "build", "")() == 1
    assert find_callable(str(second), "build", "")() == 2
    assert find_callable(str(first), "build", "")() == 1


def test_a_file_finds_those_beside_it(tmp_path: Path) -> None:
    _written(tmp_path / "beside_d.py", 5)
    path = _written(tmp_path / "misc_d.py", 0, "from beside_d import build as other")
    assert find_callable(str(path), "other", "")() == 5


def test_a_file_of_a_package(tmp_path: Path) -> None:
    _written(tmp_path / "pack_e/__init__.py", 0)
    _written(tmp_path / "pack_e/layers.py", 7)
    path = _written(
        tmp_path / "pack_e/misc.py", 0, "from .layers import build as other"
    )
    found = find_callable(str(path), "other", "")
    assert found() == 7
    assert found.__module__ == "pack_e.layers"


def test_code_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "misc_f.py"
    path.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(InputError, match=r"ZeroDivisionError: .* at .*misc_f.py:2"):
        find_callable(str(path), "build", "misc_f.py:build")


def test_code_that_ends_the_program_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "misc_h.py"
    path.write_text("import sys\ndef build():\n    sys.exit(3)")
    with pytest.raises(
        InputError, match=r"build failed: SystemExit: 3 at .*misc_h.py:3"
    ):
        load(f"{path}:build")
    path.with_name("misc_i.py").write_text("raise SystemExit")
    with pytest.raises(InputError, match=r"cannot import .*: SystemExit: no message"):
        load(f"{tmp_path}/misc_i.py:build")


def test_a_module_in_a_folder_is_told_how_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written(tmp_path / "sub_g/misc.py", 0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"write sub_g/misc\.py:NAME"):
        find_callable("sub_g/misc", "build", "sub_g/misc:build")
