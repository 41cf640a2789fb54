from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import CaptureError
from gnnplace.sharding.captured.graph import split_graph
from gnnplace.sharding.captured.layout import (
    REPLICATED,
    Place,
    mesh_configurations,
    read_layout,
)
from gnnplace.tracing.recording.recorder import OutputModule, record_calls
from gnnplace.tracing.rules.registry import find_rule, find_rules
from gnnplace.tracing.rules.rule import make_case
from tests.tracing.rules.oracle import PartShare, check, traced

TARGET = torch.tensor([1, 4, -100, 2, 0, 3, 4, -100] * 2)


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(
    ("shape", "function", "labels"),
    [
        ((4, 6, 8), lambda x: x.view(24, 8), {"0", "rows", "1"}),
        ((4, 6, 8), lambda x: x.view(4, 6, 2, 4), {"0", "1", "2"}),
        ((4, 6, 8), lambda x: x.reshape(-1), {"0"}),
        ((24, 8), lambda x: x.view(4, 6, 8), {"0", "rows", "2"}),
        ((4, 6), lambda x: x.view(6, 4), {"0"}),
        ((4, 1, 6), lambda x: x.squeeze(1), {"0", "1"}),
        ((4, 6), lambda x: x.unsqueeze(0), {"1", "2"}),
        ((4, 6, 8), lambda x: torch.flatten(x, 1), {"0", "1"}),
        ((4, 6, 8), lambda x: x.transpose(-1, -2), {"0", "1", "2"}),
        ((4, 6, 8), lambda x: x.permute(2, 0, 1), {"0", "1", "2"}),
        ((4, 6, 8), lambda x: torch.permute(x, (2, 0, 1)), {"0", "1", "2"}),
        ((4, 6), lambda x: x.t(), {"0", "1"}),
        ((4, 6), lambda x: x.T, {"0", "1"}),
        ((1, 6), lambda x: x.expand(4, -1), {"0", "1"}),
        ((6,), lambda x: x.expand(4, 6), {"0", "1"}),
        ((4, 6), lambda x: x[:, 1:3], {"0"}),
        ((4, 6, 8), lambda x: x[..., 0], {"0", "1"}),
        ((4, 6), lambda x: x[:, None], {"0", "1"}),
        ((4, 6, 8), lambda x: x.split(2, dim=1), {"0", "2"}),
        ((4, 6, 8), lambda x: torch.chunk(x, 2, -1), {"0", "1"}),
        ((4, 3, 8), lambda x: x.unbind(1), {"0", "2"}),
        ((4, 6, 8), lambda x: functional.pad(x, (0, 1)), {"0", "1"}),
        ((4, 6), lambda x: x.float(), {"0", "1"}),
    ],
)
def test_axes_are_followed(shape, function, labels):
    found = check(function, real(*shape))
    graph, rules = traced(function, real(*shape))
    reads = {axis for axis, label in enumerate(rules[0].reads[0]) if label in found}
    del graph
    assert len(found) == len(labels), (found, rules[0])
    assert len(reads) <= len(labels)


@pytest.mark.parametrize(
    ("function", "tensors", "labels"),
    [
        (functional.linear, (real(16, 8), real(6, 8)), {"in", "out"}),
        (torch.relu, (real(16, 8),), {"1"}),
        (lambda x: x.mean(), (real(16, 8),), {"1"}),
        (lambda x: x.sum(0), (real(16, 8),), {"1"}),
        (functional.cross_entropy, (real(16, 6), TARGET), {"classes"}),
        (functional.mse_loss, (real(16), real(16)), set()),
        (lambda x: functional.batch_norm(x, None, None, training=True), (real(16, 4),),
         {"channels"}),
        (lambda x: x.view(4, 4, 8), (real(16, 8),), {"2"}),
        (lambda x: x.unsqueeze(1), (real(16, 8),), {"2"}),
        (lambda x: x.expand(16, 8), (real(16, 1),), {"1"}),
        (lambda x: torch.topk(x, 2), (real(16, 8),), set()),
    ],
)  # fmt: skip
def test_rows_are_cut_by_examples_and_within_each(function, tensors, labels):
    """What stands behind a view that makes rows of examples, as in losses and mixtures."""
    check(function, *tensors, examples=4, expected={"0", "rows", *labels})


def test_dropout_of_rows_is_dropout_of_the_whole():
    x = torch.randn(16, 8)
    graph, _ = traced(lambda x: functional.dropout(x, 0.5), x)
    rule = find_rule(make_case(graph, graph.calls[0], {graph.calls[0].reads[0]: 4}))
    for place in range(2):
        part = x.view(4, 4, 8)[:, 2 * place : 2 * place + 2].reshape(8, 8)
        torch.manual_seed(0)
        whole = functional.dropout(torch.ones(16, 8), 0.5).view(4, 4, 8)
        torch.manual_seed(0)
        (call,) = graph.calls
        made = rule.run(call, (part, 0.5, True), {}, PartShare("rows", place, None))
        assert torch.equal(
            made, part * whole[:, 2 * place : 2 * place + 2].reshape(8, 8)
        )


def test_pieces_side_by_side_are_split_each():
    found = check(lambda x: x.view(4, 3, 8), real(4, 24))
    assert found == {"0", "2"}
    _, rules = traced(lambda x: x.view(4, 3, 4, 2), real(4, 24))
    assert rules[0].reads == (("0", "2|3"),)
    assert rules[0].results == (("0", None, "2", None),)
    assert rules[0].extents["2"] == 4


def test_joined_axes():
    assert check(lambda a, b: torch.cat((a, b), 1), real(4, 6, 8), real(4, 2, 8)) == {
        "0",
        "2",
    }
    assert check(lambda a, b: torch.stack([a, b], 1), real(4, 6), real(4, 6)) == {
        "0",
        "2",
    }


def test_an_index_that_is_a_tensor_stays_whole():
    _, rules = traced(lambda x, i: x[i], real(4, 6), torch.tensor([1, 2]))
    assert rules[0].kind == "whole"
    assert "index" in rules[0].reason


def test_parts_that_do_not_divide_are_no_labels():
    _, rules = traced(lambda x: x.view(3, 5, 4), real(15, 4))
    assert rules[0].extents["0"] == 3


class Fused(nn.Module):
    """Attention whose queries, keys and values are one product."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        rows, length, width = x.shape
        pieces = self.qkv(x).split(width, dim=-1)
        q, k, v = (p.view(rows, length, 4, 4).transpose(1, 2) for p in pieces)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(rows, length, width))


def captured(model, x):
    graph = record_calls(OutputModule(model, None, (x,)), "test")
    return graph, find_rules(graph)


def named(graph, rules, kind):
    return next(
        (c, r) for c, r in zip(graph.calls, rules, strict=True) if c.kind == kind
    )


def test_the_product_is_split_within_each_piece():
    graph, rules = captured(Fused(), torch.randn(2, 6, 16))
    _, product = named(graph, rules, "linear")
    assert product.reads == (("0", "1", "in"), ("out|3", "in"), ("out|3",))
    assert product.results == (("0", "1", "out|3"),)
    assert product.extents["out"] == 16
    _, cut = named(graph, rules, "split")
    assert cut.reads[0][-1] == "piece|3"
    assert {axes[-1] for axes in cut.results} == {"piece"}


def test_its_features_are_heads():
    graph, rules = captured(Fused(), torch.randn(2, 6, 16))
    op = split_graph(graph, rules).ops[0]
    assert op.words(("out", "0"), (4, 2)) == "heads over 4, batch over 2"
    assert read_layout(op.shape.reads[1], ("out", "0")) == (Place(0, 3), REPLICATED)


def test_no_two_mesh_dimensions_cut_the_pieces():
    graph, rules = captured(Fused(), torch.randn(2, 6, 16))
    shape = split_graph(graph, rules).ops[0].shape
    found = mesh_configurations(shape, (2, 2))
    assert ("out", "in") in found
    assert ("in", "in") in found
    assert ("out", "out") not in found


def test_pieces_that_get_an_axis_of_their_own():
    class Folded(Fused):
        def forward(self, x):
            qkv = self.qkv(x).reshape(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
            return self.out(y.transpose(1, 2).reshape(2, 6, 16))

    graph, rules = captured(Folded(), torch.randn(2, 6, 16))
    _, product = named(graph, rules, "linear")
    assert product.results == (("0", "1", "out|3"),)
    assert product.extents["out"] == 16
    assert split_graph(graph, rules).ops[0].words(("out",), (4,)) == "heads over 4"


@pytest.mark.parametrize("index", [0, 1])
def test_a_part_makes_a_part_of_each_piece(index):
    torch.manual_seed(0)
    model, x = Fused(), torch.randn(2, 6, 16)
    whole = model.qkv(x).chunk(3, -1)
    weight, bias = (
        torch.cat([piece.chunk(2)[index] for piece in p.chunk(3)])
        for p in model.qkv.parameters()
    )
    part = functional.linear(x, weight, bias).chunk(3, -1)
    for mine, all_of_it in zip(part, whole, strict=True):
        torch.testing.assert_close(mine, all_of_it.chunk(2, -1)[index])


def test_what_else_reads_the_product_forbids_it():
    class Twice(Fused):
        def forward(self, x):
            y = self.qkv(x)
            return y.split(16, dim=-1)[0] * y.sum()

    graph, rules = captured(Twice(), torch.randn(2, 6, 16))
    _, product = named(graph, rules, "linear")
    assert product.results == (("0", "1", "out"),)


def test_unequal_pieces_forbid_it():
    class Unequal(Fused):
        def forward(self, x):
            return self.qkv(x).split([16, 32], dim=-1)[1]

    graph, rules = captured(Unequal(), torch.randn(2, 6, 16))
    assert named(graph, rules, "linear")[1].results == (("0", "1", "out"),)


def test_parts_of_complex_numbers_stay_together():
    assert check(torch.view_as_complex, real(4, 6, 2)) == {"0", "1"}
    z = torch.complex(
        torch.rand(4, 6).double(), torch.rand(4, 6).double()
    ).requires_grad_()
    assert check(torch.view_as_real, z) == {"0", "1"}


def written(x, y):
    made = x.new_zeros(4, 6, 8)
    made[..., :3].copy_(x)
    made[..., 3:].copy_(y.expand(4, 6, 5))
    made[:, 0] = 1.0
    return made * 2


def test_copies_into_parts_of_a_tensor_are_assignments_that_can_be_cut():
    graph, rules = traced(written, real(4, 6, 3), real(4, 1, 5))
    found = {
        call.kind: set(rule.extents)
        for call, rule in zip(graph.calls, rules, strict=True)
    }
    assert found == {"new_zeros": {"0", "1"}, "expand": {"0", "1", "2"}, "setitem": {"0", "2"},
                     "mul": {"0", "1", "2"}}  # fmt: skip
    assert [call.kind for call in graph.calls].count("setitem") == 3
    assert check(lambda x: x.new_full((4, 9), 2.5), real(4, 6)) == {"0"}


def test_what_is_read_through_a_view_after_such_a_copy_is_refused():
    def late(x):
        made = x.new_zeros(4, 6)
        part = made[:, :3]
        part.copy_(x)
        return made.sum() + part.sum()

    with pytest.raises(CaptureError, match="changed in place through another view"):
        traced(late, real(4, 3))
