from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.tracing.rules.oracle import check, traced


def real(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def classes(*shape):
    return torch.randint(5, shape)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_along_the_batch(reduction):
    def loss(x, y):
        return functional.cross_entropy(x, y, reduction=reduction)

    assert check(loss, real(4, 6), classes(4)) == {"0", "classes"}
    assert check(loss, real(4, 6, 2), classes(4, 2)) == {"0", "2", "classes"}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_classes_are_cut_with_targets_that_do_not_count_and_smoothing(reduction):
    target = torch.tensor([1, -100, 5, 3, 0, 2])

    def loss(x, y):
        return functional.cross_entropy(x, y, reduction=reduction, label_smoothing=0.3)

    assert check(loss, real(6, 8), target) == {"0", "classes"}
    # Sums of exp overflow without the largest.
    far = (real(6, 8) * 300).detach().requires_grad_()
    assert check(loss, far, target) == {"0", "classes"}
    zero = target.where(target >= 0, 0)
    assert "classes" in check(lambda x, y: functional.cross_entropy(
        x, y, ignore_index=0, reduction=reduction), real(6, 8), zero)  # fmt: skip


def test_ignored_targets_count_for_nothing_though_they_are_all_in_one_part():
    target = torch.tensor([1, 2, -100, -100])
    assert check(functional.cross_entropy, real(4, 6), target) == {"0", "classes"}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_classes_that_are_cut_have_weights(reduction, smoothing):
    weight, target = torch.rand(6).double(), torch.tensor([1, -100, 5, 3])

    def loss(x, y, w):
        return functional.cross_entropy(
            x, y, weight=w, reduction=reduction, label_smoothing=smoothing
        )

    assert check(loss, real(4, 6), target, weight) == {"0", "classes"}
    assert check(loss, real(2, 6, 2), target.view(2, 2), weight) == {
        "0",
        "2",
        "classes",
    }


@pytest.mark.parametrize("keep", [False, True])
def test_a_z_loss_is_made_of_parts_of_the_classes(keep):
    def loss(x):
        return x.logsumexp(-1, keepdim=keep)

    assert check(loss, real(4, 6)) >= {"0", "1"}
    far = (real(4, 6) * 300).detach().requires_grad_()
    assert "1" in check(lambda x: torch.logsumexp(x, 1), far)
    none = torch.full((4, 6), -torch.inf, dtype=torch.float64)
    none[:, :2] = 1.0  # a part may have no class that can be
    assert "1" in check(lambda x: torch.logsumexp(x, -1), none.requires_grad_())
    assert check(lambda x: x.logsumexp((0, 1)), real(4, 6)) == set()


def test_weights_and_smoothing():
    weight = torch.rand(6).double()
    check(
        lambda x, y, w: functional.cross_entropy(x, y, w),
        real(4, 6),
        classes(4),
        weight,
    )
    check(
        lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.2),
        real(4, 6),
        classes(4),
    )


def test_targets_that_are_probabilities():
    target = torch.rand(4, 5).double().softmax(-1)
    assert "0" in check(functional.cross_entropy, real(4, 5), target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "loss",
    [
        functional.mse_loss,
        functional.l1_loss,
        functional.smooth_l1_loss,
        functional.huber_loss,
        functional.binary_cross_entropy_with_logits,
    ],
)
def test_comparisons_along_every_axis(loss, reduction):
    target = torch.rand(4, 6).double()
    assert check(lambda x, y: loss(x, y, reduction=reduction), real(4, 6), target) == {
        "0",
        "1",
    }


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_elements_are_cut_with_them(reduction):
    def loss(x, y, w, p):
        return functional.binary_cross_entropy_with_logits(
            x, y, w, reduction=reduction, pos_weight=p
        )

    targets, weights, positive = torch.rand(4, 6), torch.rand(4, 6), torch.rand(6)
    given = (targets.double(), weights.double(), positive.double())
    assert check(loss, real(4, 6), *given) == {"0", "1"}


def test_shapes_that_are_broadcast_stay_whole():
    _, rules = traced(functional.mse_loss, real(4, 6), torch.rand(4, 1).double())
    assert rules[0].kind == "whole"
