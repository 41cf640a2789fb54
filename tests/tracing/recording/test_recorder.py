from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from gnnplace.errors import CaptureError
from gnnplace.sharding.captured.split import layer_graph
from gnnplace.tracing.calls.graph import CallRef, function_name
from gnnplace.tracing.loading import load
from gnnplace.tracing.models import capture
from gnnplace.tracing.recording.recorder import OutputModule, record_calls
from gnnplace.tracing.step import StepModule


def record(model, *inputs, loss=None):
    step = (
        StepModule(model, loss, inputs) if loss else OutputModule(model, None, inputs)
    )
    return record_calls(step, "test")


def kinds(graph):
    return [call.kind for call in graph.calls]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x):
        y = functional.relu(self.up(x))
        x += self.down(y)
        return {"out": x, "rows": x.shape[0]}


def test_calls_have_the_names_of_their_modules():
    graph = record(Residual(), torch.ones(2, 4))
    assert [call.name for call in graph.calls] == ["up", "relu", "down", "add"]
    assert graph.output["rows"] == 2
    assert isinstance(graph.output["out"], CallRef)


def test_a_layer_is_named_after_what_it_is_for():
    graph = record(nn.Sequential(nn.BatchNorm1d(4), nn.Flatten()), torch.randn(3, 4))
    assert [call.name for call in graph.calls] == ["0.add", "0", "1.flatten"]


def test_values_know_where_they_come_from():
    graph = record(Residual(), torch.ones(2, 4))
    up = graph.calls[0]
    sources = [graph.values[v].source for v in up.reads]
    assert sources == ["input", "parameter", "parameter"]
    assert graph.values[up.reads[1]].name == "up.weight"
    assert graph.values[up.results[0]].gradient


def test_tied_parameters_are_one_value():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids))

    graph = record(Tied(), torch.tensor([1, 2]))
    assert graph.calls[0].reads[1] == graph.calls[1].reads[1]


def test_what_nothing_needs_is_left_out_but_buffers_change():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            torch.tanh(x)
            return self.norm(x)

    assert kinds(record(Model(), torch.randn(3, 4))) == ["add", "batch_norm"]


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    record(model, torch.randn(3, 4))
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_change_through_another_view_is_refused():
    class Model(nn.Module):
        def forward(self, x):
            y = x * 2.0
            y[:, 0].mul_(3.0)
            return y

    with pytest.raises(CaptureError, match="in place"):
        record(Model(), torch.ones(2, 4))


def test_a_change_in_place_is_a_new_value():
    class Model(nn.Module):
        def forward(self, x):
            y = x * 2.0
            y[:, 0] = 1.0
            return y + x

    graph = record(Model(), torch.ones(2, 4))
    assert kinds(graph) == ["mul", "setitem", "add"]
    assert graph.calls[1].changes
    assert graph.calls[2].reads[0] == graph.calls[1].results[0]


def test_sizes_that_are_tensors_of_constants_are_numbers():
    """As transformers writes `torch.div(length, window, rounding_mode="trunc")`."""

    class Model(nn.Module):
        def forward(self, x):
            count = torch.div(torch.tensor(x.shape[1]), 3, rounding_mode="trunc")
            return x.view(x.shape[0], count, 3).as_strided([4, count, 2], (6, 3, 1))

    graph = record(Model(), torch.ones(4, 6))
    assert kinds(graph) == ["view", "as_strided"]
    assert graph.calls[1].args[1] == [4, 2, 2]
    net = nn.Sequential(nn.Linear(6, 6), Model())
    assert "as_strided" in {op.name for op in capture(net, torch.ones(4, 6)).ops}
    assert layer_graph(net, torch.ones(4, 6), torch.sum, "sizes").calls
    by_input = nn.Module()
    by_input.forward = lambda x: x.view(x[0, 0].long(), -1)
    with pytest.raises(CaptureError, match="numbers of a tensor"):
        record(by_input, torch.ones(4, 6))


def test_an_autograd_function_of_ones_own_is_one_call():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    class Model(nn.Module):
        def forward(self, x):
            return Twice.apply(x)

    assert kinds(record(Model(), torch.ones(2, requires_grad=True))) == ["Twice.apply"]


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda x: x * 2.0 if bool((x > 0).all()) else x - 1.0, "an `if`"),
        (lambda x: x * x.mean().item(), "number of Python"),
        (lambda x: x[x > 0].mean(), "boolean mask"),
    ],
)
@pytest.mark.parametrize("real", [False, True])
def test_decisions_on_numbers_are_refused_as_capture_refuses_them(forward, why, real):
    """On fake tensors, and on real ones, where a model has something that fake ones cannot do."""

    class Model(nn.Module):
        def forward(self, x):
            if real and isinstance(x, FakeTensor):
                raise RuntimeError("no kernel without numbers")
            return forward(x)

    with pytest.raises(CaptureError, match=rf"numbers of a tensor \(.*{why}"):
        record(Model(), torch.ones(2))


def test_numbers_of_constants_may_be_read_on_real_tensors():
    class Model(nn.Module):
        def forward(self, x):
            if isinstance(x, FakeTensor):
                raise RuntimeError("no kernel without numbers")
            return x * 2.0 if torch.ones(3).sum().item() > 2 else x - 1.0

    assert kinds(record(Model(), torch.ones(2)))[-1] == "mul"


def test_a_model_that_takes_no_memory_can_be_captured():
    workload = load("mlp?depth=1", fake=True)
    step = StepModule(workload.model, workload.loss, workload.inputs)
    assert kinds(record_calls(step, "mlp"))[-1] == "cross_entropy"


def test_a_tensor_that_is_two_inputs_is_two_values():
    """As labels that are the words themselves: `model(input_ids=ids, labels=ids)`."""
    with FakeTensorMode():
        model, ids = nn.Embedding(5, 5), torch.zeros(2, 3, dtype=torch.int64)

    def loss(out, target):
        return functional.cross_entropy(out.flatten(0, 1), target.flatten())

    graph = record_calls(StepModule(model, loss, (ids, ids)), "m")
    read = [graph.values[index].name for call in graph.calls for index in call.reads]
    assert {"0", "1"} <= set(read)


def test_an_error_of_the_model_is_one_of_ours():
    class Model(nn.Module):
        def forward(self, x):
            return x @ torch.ones(3, 3)

    with pytest.raises(CaptureError):
        record(Model(), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.Tensor.__iadd__, "iadd"),
        (torch.Tensor.add_, "add"),
        (functional.relu, "relu"),
    ],
)
def test_function_names(function, name):
    assert function_name(function) == name


def test_a_module_that_stands_at_several_places_keeps_its_parameters():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    before = dict(model.named_parameters())
    graph = record_calls(StepModule(model, None, (torch.ones(2, 4),)), "twice")
    assert [call.kind for call in graph.calls] == ["linear", "relu", "linear", "sum"]
    assert all(
        before[name] is parameter for name, parameter in model.named_parameters()
    )


LLAMA = AutoConfig.for_model(
    "llama", hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=32,
)  # fmt: skip


class WithPositions(nn.Module):
    """A language model that is told the place of every token."""

    def __init__(self, positions=None):
        super().__init__()
        self.positions, self.model = positions, AutoModelForCausalLM.from_config(LLAMA)

    def forward(self, tokens, positions=None):
        if self.positions is not None:
            positions = torch.tensor(self.positions).expand(len(tokens), -1)
        return self.model(tokens, position_ids=positions).logits


def masks(graph):
    """The mask and the flag of every attention."""
    calls = [c for c in graph.calls if c.kind == "scaled_dot_product_attention"]
    return [(c.kwargs["attn_mask"] is not None, c.kwargs["is_causal"]) for c in calls]


def test_attention_is_causal_by_a_flag_where_eager_mode_has_it_so():
    tokens, positions = (
        torch.zeros(2, 6, dtype=torch.long),
        torch.arange(6).expand(2, -1),
    )
    assert masks(record(WithPositions(), tokens)) == [(False, True)] * 2
    assert masks(record(WithPositions([*range(6)]), tokens)) == [(False, True)] * 2
    packed = WithPositions([0, 1, 2, 0, 1, 2])
    # With a cache it does not look.
    assert masks(record(packed, tokens)) == [(False, True)] * 2
    packed.model.config.use_cache = False
    assert masks(record(packed, tokens)) == [(True, False)] * 2
    packed.positions = None
    assert masks(record(packed, tokens)) == [(False, True)] * 2
    assert masks(record(packed, tokens, positions)) == [(True, False)] * 2


def language_model(kind):
    """As transformers makes it: `use_cache` is true unless somebody says otherwise."""
    sizes = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes["decoder_start_token_id"] = 0
    if kind == "llama":
        sizes |= {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    elif kind == "t5":
        sizes |= {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    else:
        sizes |= {"n_embd": 16, "n_layer": 1, "n_head": 2}
    config = AutoConfig.for_model(kind, **sizes)
    auto = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    return auto.from_config(config)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_keys_and_values_are_not_kept_for_a_next_word(kind):
    """Training reads none of the cache; the model's own setting is as it was."""
    model, words = language_model(kind), torch.ones(2, 6, dtype=torch.long)
    assert model.config.use_cache
    inputs = {"input_ids": words, "labels": words}
    graph = record_calls(StepModule(model, None, inputs), kind)
    assert model.config.use_cache
    model.config.use_cache = False
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.use_cache = False
    other = record_calls(StepModule(model, None, inputs), kind)
    assert kinds(graph) == kinds(other)


def test_a_tensor_that_learns_and_is_no_parameter_of_the_model_is_refused():
    scale = torch.ones((), requires_grad=True)
    model = torch.nn.Linear(3, 3)
    record_calls(
        StepModule(
            model, lambda out: (out * scale.detach()).sum(), (torch.ones(2, 3),)
        ),
        "m",
    )
    step = StepModule(model, lambda out: (out * scale).sum(), (torch.ones(2, 3),))
    with pytest.raises(
        CaptureError, match="needs a gradient and is no parameter of the model"
    ):
        record_calls(step, "m")


@pytest.mark.parametrize("way", ["vmap", "grad"])
def test_what_functions_of_torch_make_of_parameters_is_no_call(way):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x):
            def value(row):
                return self.layer(row).tanh().sum()

            return (
                torch.func.vmap(value) if way == "vmap" else torch.func.grad(value)
            )(x)

    step = StepModule(Model(), lambda out: out.square().sum(), (torch.ones(2, 3),))
    with pytest.raises(
        CaptureError, match=r"torch\.func .* write that for whole batches"
    ):
        record_calls(step, "m")
