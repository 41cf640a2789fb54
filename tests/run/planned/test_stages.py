"""Calls of a model cut into stages: what crosses, what each makes, which numbers it draws."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import MismatchError
from gnnplace.plans.segments.chains import capture_layers
from gnnplace.run.planned.draws import derive_seed, draw_as_plan
from gnnplace.run.planned.stages import make_stage_calls, move_calls
from gnnplace.tracing.calls.graph import BUFFER
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for, toy


@pytest.fixture(scope="module")
def graph():
    return capture_layers(toy(batch=4, depth=3), "32-true").calls


def counts(graph, call):
    """Whether a call counts batches: it reads a buffer first, and has no product of its own."""
    return call.kind == "add" and graph.values[call.reads[0]].source == BUFFER


def members(graph, *ends):
    """Names of calls that read parameters or what comes of them, cut after these calls."""
    names = [call.name for call in graph.calls if not counts(graph, call)]
    places = [0, *(names.index(end) + 1 for end in ends), len(names)]
    return [names[a:b] for a, b in pairwise(places)]


def test_a_skip_is_handed_through_every_stage_between(graph):
    pieces = make_stage_calls(
        graph, members(graph, "blocks.0.add", "blocks.1.add"), [[], [], []]
    )
    (skip,) = graph.calls[pieces[0].calls[0]].results
    assert skip in pieces[0].leaving
    assert skip in pieces[1].entering
    assert skip in pieces[1].leaving
    assert skip in pieces[2].entering
    assert pieces[0].entering == pieces[2].leaving == ()
    assert all(a.leaving == b.entering for a, b in pairwise(pieces))


def test_a_cut_may_be_inside_of_a_module(graph):
    pieces = make_stage_calls(graph, members(graph, "blocks.1.up"), [[], []])
    assert (
        len(pieces[0].leaving) == 3
    )  # what the block adds, its product, and the long skip
    assert "blocks.1.up.weight" in pieces[0].parameters
    assert "blocks.1.down.weight" in pieces[1].parameters


def test_tied_parameters_are_read_by_both_stages(graph):
    pieces = make_stage_calls(graph, members(graph, "blocks.0.add"), [[], []])
    assert all("first.weight" in piece.parameters for piece in pieces)


def test_counters_go_with_their_layer_and_are_counted_once(graph):
    pieces = make_stage_calls(
        graph, members(graph, "blocks.0.add", "blocks.1.add"), [[], [], []]
    )
    counters = [i for i, c in enumerate(graph.calls) if counts(graph, c)]
    assert len(counters) == 3
    for piece, counter in zip(pieces, counters, strict=True):
        assert [i for i in piece.calls if i in counters] == [counter]


def test_what_is_recomputed_is_a_run_of_the_stage(graph):
    names = members(graph, "blocks.0.add")
    again = [["blocks.0.norm", "blocks.0.up"]]
    (first, last), = make_stage_calls(graph, names, [again, []])[0].recomputed  # fmt: skip
    piece = make_stage_calls(graph, names, [again, []])[0]
    assert [graph.calls[i].name for i in piece.calls[first:last]] == again[0]


def test_other_calls_than_the_models_are_refused(graph):
    names = members(graph, "blocks.0.add")
    with pytest.raises(
        MismatchError, match=r"stages\[1\].members: the model has no call 'odd'"
    ):
        make_stage_calls(graph, [names[0], [*names[1], "odd"]], [[], []])
    with pytest.raises(MismatchError, match="not in the order"):
        make_stage_calls(graph, names[::-1], [[], []])
    with pytest.raises(MismatchError, match="no stage has the model's call"):
        make_stage_calls(graph, [names[0], names[1][1:]], [[], []])


def test_the_stages_of_a_plan_are_pieces_of_its_model(graph):
    plan = plan_for(toy(depth=3), "pp=3,microbatch_size=4", 3)
    pieces = make_stage_calls(
        graph, [s.members for s in plan.file.stages], [[], [], []]
    )
    read = {name for piece in pieces for name in piece.parameters}
    assert read == set(dict(toy(depth=3).model.named_parameters()))


class Masked(nn.Module):
    """Makes positions on the device of what it reads."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        positions = torch.arange(4, device=x.device)
        return self.layer(x.masked_fill(positions > 2, 0.0)).sum()


def test_calls_name_the_device_that_they_are_moved_to():
    workload = Workload("masked", Masked(), (torch.ones(2, 4),), None)
    graph = capture_layers(workload, "32-true").calls
    (before,) = [c.kwargs["device"] for c in graph.calls if c.kind == "arange"]
    moved = move_calls(graph, torch.device("meta"))
    (after,) = [c.kwargs["device"] for c in moved.calls if c.kind == "arange"]
    assert (before.type, after.type) == ("cpu", "meta")
    assert [c.name for c in moved.calls] == [c.name for c in graph.calls]
    assert [c.reads for c in moved.calls] == [c.reads for c in graph.calls]


def masks(step, example, attention=True):
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    heads = torch.ones(1, 2, 8, 4)
    with (
        torch.random.fork_rng(devices=[]),
        draw_as_plan(1, step, example, attention=attention),
    ):
        mixed = functional.scaled_dot_product_attention(
            heads, heads, heads, dropout_p=0.5
        )
        return mixed, model[0](torch.ones(64)), model[1](torch.ones(64))


def test_masks_depend_on_step_and_micro_batch_and_on_nothing_else():
    first = masks(0, 0)
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(first, masks(0, 0), strict=True))
    for other in (masks(1, 0), masks(0, 1)):
        assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[1], first[2])


def test_attention_drops_nothing_where_it_is_told_not_to():
    assert torch.equal(masks(0, 0, attention=False)[0], torch.ones(1, 2, 8, 4))


def test_seeds_are_all_different():
    seeds = {derive_seed(b, s, m, k) for b in range(3) for s in range(5) for m in range(5)
             for k in range(20)}  # fmt: skip
    assert len(seeds) == 3 * 5 * 5 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: functional.gumbel_softmax(x),
        lambda x: functional.rrelu(-x, training=True),
        lambda x: x[torch.randperm(len(x))],
        lambda x: torch.poisson(x),
        lambda x: nn.MultiheadAttention(8, 2, dropout=0.5)(x, x, x)[0],
    ],
)
def test_whatever_draws_is_drawn_alike(draw):
    def drawn():
        torch.manual_seed(0)  # of the weights of attention
        x = torch.linspace(0, 1, 64).view(8, 8)
        with draw_as_plan(1, 2, 3):
            return draw(x).detach()

    first = drawn()
    assert torch.equal(first, drawn())
    assert not torch.equal(first, draw(torch.linspace(0, 1, 64).view(8, 8)).detach())
