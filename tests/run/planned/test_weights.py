"""Weight gradients that wait are bitwise those that autograd makes at once."""

import pytest
import torch
from torch.nn import functional

from gnnplace.run.planned.weights import (
    PATIENCE,
    START,
    Queue,
    find_loss_scale,
    product,
)


def factors(shape, bias, kind):
    torch.manual_seed(0)
    x = torch.randn(*shape, 6, requires_grad=True)
    weight = torch.randn((5, 6) if kind == "linear" else (6, 5), requires_grad=True)
    return x, weight, torch.randn(5, requires_grad=True) if bias else None


def made(kind, x, weight, bias, queue):
    args = (x, weight, bias) if kind == "linear" else (bias, x, weight)
    if queue is not None:
        return product(kind, args, {}, queue)
    return functional.linear(*args) if kind == "linear" else torch.addmm(*args)


@pytest.mark.parametrize(
    ("kind", "shape", "bias"),
    [
        ("linear", (7,), True),
        ("linear", (7,), False),
        ("linear", (3, 7), True),
        ("linear", (2, 3, 7), False),
        ("addmm", (7,), True),
    ],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_bitwise_those_of_autograd(kind, shape, bias, autocast):
    grads = []
    for queue in (None, Queue()):
        factor = factors(shape, bias, kind)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = made(kind, *factor, queue)
        (y.float() * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        if queue is not None:
            assert factor[1].grad is None
            assert len(queue.waiting) == 1
            queue.run()
            assert not queue.waiting
        grads.append([y.detach(), *(t.grad for t in factor if t is not None)])
    for one, other in zip(*grads, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["linear", "addmm"])
def test_a_bias_that_is_no_leaf_has_its_gradient_at_once(kind):
    grads = []
    for queue in (None, Queue()):
        x, weight, bias = factors((7,), True, kind)
        made(kind, x, weight, bias * 0.5, queue).square().sum().backward()
        assert bias.grad is not None
        if queue is not None:
            assert weight.grad is None
            queue.run()
        grads.append([x.grad, weight.grad, bias.grad])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_two_micro_batches_add_up():
    x, weight, bias = factors((7,), True, "linear")
    queue = Queue()
    for _ in range(2):
        made("linear", x, weight, bias, queue).sum().backward()
    queue.run()
    assert torch.allclose(weight.grad, 2 * x.detach().sum(0).expand(5, 6), rtol=1e-5)


def test_what_has_another_form_is_left_to_autograd():
    x, weight, bias = factors((7,), True, "linear")
    assert product("linear", (x.detach(), weight, bias), {}, Queue()) is None
    assert product("linear", (x, weight.detach(), bias), {}, Queue()) is None
    assert product("linear", (x, weight * 2, bias), {}, Queue()) is None
    assert product("addmm", (torch.zeros(7, 5), x, weight.t()), {}, Queue()) is None
    with torch.no_grad():
        assert product("linear", (x, weight, bias), {}, Queue()) is None


def test_keywords_are_taken():
    x, weight, bias = factors((7,), True, "linear")
    found = product("linear", (x,), {"weight": weight, "bias": bias}, Queue())
    assert torch.equal(found, functional.linear(x, weight, bias))


def test_the_factor_halves_on_overflow_and_doubles_after_patience():
    scale = find_loss_scale("16-mixed")
    scale.update(False)
    assert scale.factor == START / 2
    for _ in range(PATIENCE):
        scale.update(True)
    assert scale.factor == START
    scale.update(True)
    assert scale.factor == START
    for _ in range(40):
        scale.update(False)
    assert scale.factor == 1.0


def test_half_parameters_hold_no_larger_factor_and_others_need_none():
    scale = find_loss_scale("16-master")
    for _ in range(PATIENCE):
        scale.update(True)
    assert scale.factor == START
    assert find_loss_scale("bf16-mixed") is None
