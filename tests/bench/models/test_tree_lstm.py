from __future__ import annotations

import torch

from gnnplace import zoo
from gnnplace.bench.models.tree_lstm import TreeLSTM, merges


def test_merges_are_those_of_their_seed_and_leave_one_node():
    assert merges(9, 1) == merges(9, 1) != merges(9, 2)
    lefts = range(9, 1, -1)
    assert all(0 <= w < left - 1 for w, left in zip(merges(9, 1), lefts, strict=True))


def test_a_node_is_what_the_formula_says():
    torch.manual_seed(0)
    model = TreeLSTM(10, 4, [0], 3)
    left, right = ((torch.randn(2, 4), torch.randn(2, 4)) for _ in range(2))
    gates = model.node(torch.cat([left[0], right[0]], 1))
    enter, first, second, out = torch.sigmoid(gates[:, :16]).split(4, 1)
    cell = enter * torch.tanh(gates[:, 16:]) + first * left[1] + second * right[1]
    state, found = model.joined(left, right)
    torch.testing.assert_close(found, cell)
    torch.testing.assert_close(state, out * torch.tanh(cell))


def test_the_tree_is_the_plan():
    torch.manual_seed(0)
    model, words = TreeLSTM(10, 4, [1, 0], 3), torch.tensor([[1, 2, 3]])
    first, second, third = (
        model.of_word(word) for word in model.embedding(words).unbind(1)
    )
    root = model.joined(first, model.joined(second, third))
    torch.testing.assert_close(model(words), model.head(root[0]))


def test_trees_are_other_graphs():
    plans = [
        zoo.build("tree_lstm", length=12, tree=tree).model.plan for tree in (1, 1, 2)
    ]
    assert plans[0] == plans[1] != plans[2]
