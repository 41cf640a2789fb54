"""What quick fakes make has the geometry and the memory of what torch makes of real tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gnnplace.tracing.fakes.quick import without_numbers

PROGRAMS = {
    "products": lambda x, y: (
        x @ y.t(),
        torch.baddbmm(x[None], x[None], y[None, :4, :4]),
    ),
    "views": lambda x, y: (
        x.t(),
        x[1:],
        x.unsqueeze(0).expand(3, 4, 4),
        x.view(2, 8),
        x.detach(),
    ),
    "layouts": lambda x, y: (
        x.t() + 1,
        (x.t() * y.t()[:4, :4]).sum(1),
        y.t().contiguous(),
    ),
    "types": lambda x, y: (x > 0, x.to(torch.bfloat16), x.argmax(-1), x.long() + 1.5),
    "several": lambda x, y: (*x.split(2), *torch.var_mean(x), *x.topk(2), *x.unbind(1)),
    "written": lambda x, y: (y[:4].copy_(x), y.add_(1), y.mul_(2.0)[1:]),
    "numbers": lambda x, y: (
        torch.tensor([1.0, 2.0, 3.0, 4.0]) * x,
        torch.zeros(4).to(x),
    ),
    "complex": lambda x, y: (torch.view_as_complex(x.view(2, 4, 2)).conj() * 2,),
}


def shown(tensors, operands):
    """Shape, stride, type of each result, and the operand or result whose memory it has."""
    held = [t.untyped_storage()._cdata for t in (*operands, *tensors)]
    own = held[len(operands) :]
    return [
        (
            tuple(t.shape),
            t.stride(),
            t.storage_offset(),
            t.dtype,
            t.is_conj(),
            held.index(key),
        )
        for t, key in zip(tensors, own, strict=True)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_made_twice_is_as_real_tensors_are(name):
    real = torch.randn(4, 4), torch.randn(6, 4)
    truth = shown(PROGRAMS[name](*real), real)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for _ in range(3):  # the second and third time from what is known
        with without_numbers(mode):
            fake = torch.empty(4, 4), torch.empty(6, 4)
            made = PROGRAMS[name](*fake)
        assert shown(made, fake) == truth
        assert all(type(t) is FakeTensor and t.device.type == "cpu" for t in made)


def test_gradients_are_as_those_of_real_tensors():
    def step(x, weight):
        hidden = torch.nn.functional.layer_norm(x @ weight, (4,)).view(2, 2, 4)
        found = torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)
        found.square().mean().backward()
        return x.grad, weight.grad

    truth = step(
        torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for _ in range(2):
        with without_numbers(mode):
            fake = [torch.empty(4, 4, requires_grad=True) for _ in range(2)]
            made = step(*fake)
        assert [(t.shape, t.stride(), t.dtype) for t in made] == [
            (t.shape, t.stride(), t.dtype) for t in truth
        ]


def test_what_reads_numbers_is_refused_as_torch_refuses_it():
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with without_numbers(mode), pytest.raises(Exception, match="nonzero"):
        torch.empty(4).nonzero()
