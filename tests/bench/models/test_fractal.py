from __future__ import annotations

import torch

from gnnplace import zoo
from gnnplace.bench.models.fractal import Block


def test_a_block_is_what_the_rule_says():
    torch.manual_seed(0)
    block, x = Block(3, 4, 8).eval(), torch.randn(2, 4, 6, 6)
    first, second = block.first, block.second
    inner = first(x)
    torch.testing.assert_close(
        inner, (first.short(x) + first.second(first.first(x))) / 2
    )
    deepest = second.second(second.first(inner))
    expected = (block.short(x) + second.short(inner) + deepest) / 3
    torch.testing.assert_close(block(x), expected)


def test_the_longest_path_doubles_with_each_column():
    for columns in (1, 2, 4):
        block = Block(columns, 3, 3)
        layers = sum(isinstance(module, torch.nn.Conv2d) for module in block.modules())
        assert layers == 2**columns - 1


def test_the_network_gives_scores_of_classes():
    work = zoo.build(
        "fractal", batch=2, size=16, columns=2, stages=2, width=4, classes=7
    )
    assert work.model(work.inputs[0]).shape == (2, 7)
