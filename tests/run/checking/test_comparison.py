"""What counts as a difference, bit by bit and by numbers."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from gnnplace.run.checking.comparison import Verification, differences


def vectors(**values: list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(numbers) for name, numbers in values.items()}


@pytest.mark.parametrize(
    ("found", "expected", "bits", "numbers"),
    [
        ([1.0, 2.0], [1.0, 2.0], None, None),
        ([1.0, 2.5], [1.0, 2.0], 0.25, 0.25),
        ([0.0], [-0.0], 0.0, None),
        ([nan, 1.0], [nan, 1.0], None, inf),
        ([nan], [1.0], inf, inf),
        ([1.0, 1.0], [1.0], inf, inf),
    ],
)
def test_bits_and_numbers(found, expected, bits, numbers) -> None:
    pair = vectors(x=found), vectors(x=expected)
    for nothing, told in ((None, bits), (1e-6, numbers)):
        made = differences(*pair, 1e-3, nothing=nothing)
        assert [d.relative for d in made] == ([] if told is None else [told])


def test_what_is_nothing_beside_the_largest_is_measured_against_it() -> None:
    expected = vectors(loss=[1e6], large=[100.0], none=[1e-12])
    found = vectors(loss=[1e6], large=[100.0], none=[3e-12])
    assert differences(found, expected, 1e-3, nothing=1e-6)[
        0
    ].relative == pytest.approx(2e-8)
    assert differences(found, expected, {torch.float32: 1e-3})[
        0
    ].relative == pytest.approx(2.0)


def test_the_worst_comes_first_and_is_told() -> None:
    expected = vectors(a=[1.0], b=[1.0])
    made = differences(vectors(a=[1.001], b=[1.1]), expected, 1e-2, nothing=0.0)
    verified = Verification(2, tuple(made))
    assert [d.name for d in made] == ["b", "a"]
    assert not verified.passed
    assert "2 of 2 tensors differ, NOT within" in verified.summary()
