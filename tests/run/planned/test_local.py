"""Parts of tensors: what goes element by element works, numbers made of them are refused."""

import pytest
import torch
from torch import nn
from torch.nn import utils

from gnnplace.errors import InputError
from gnnplace.run.planned.local import Elsewhere, Local, Marks

NUMBERS = {
    "clip_grad_norm_": lambda p: utils.clip_grad_norm_([p], 1.0),
    "get_total_norm": lambda p: utils.get_total_norm([p.grad]),
    "norm of data": lambda p: p.grad.data.norm(2).item(),
    "foreach norm": lambda p: torch._foreach_norm([p.grad, p.grad]),
    "squares": lambda p: p.grad.pow(2).sum(),
    "vector": lambda p: utils.parameters_to_vector([p, p]).norm(),
    "not finite": lambda p: torch.isnan(p.grad).any(),
    "largest": lambda p: p.grad.abs().max(),
    "centred": lambda p: p.grad.sub_(p.grad.mean(1, keepdim=True)),
    "product": lambda p: p.grad @ p.grad.T,
    "element": lambda p: p[0, 0].item(),
    "compared": lambda p: torch.equal(p, p),
}
ELEMENTS = {
    "clip_grad_value_": lambda p: utils.clip_grad_value_([p], 0.1),
    "clamp": lambda p: p.data.clamp_(-0.1, 0.1),
    "average": lambda p: torch.zeros(3, 4).lerp_(p.detach(), 0.5),
    "view": lambda p: p.grad[0].mul_(2.0),
    "sizes": lambda p: (p.shape, p.numel(), p.dim(), p.dtype),
    "printed": repr,
}


def marked():
    parameter = nn.Parameter(
        torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    )
    parameter.grad = torch.ones(3, 4)
    marks = Marks((parameter,))
    marks.put()
    return parameter, marks


@pytest.mark.parametrize("use", NUMBERS)
def test_a_number_made_of_parts_is_refused(use):
    parameter, _ = marked()
    with pytest.raises(InputError, match=r"runner\.clip_grad_norm_") as told:
        NUMBERS[use](parameter)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("use", ELEMENTS)
def test_what_goes_element_by_element_is_what_it_is_on_plain_tensors(use):
    parameter, _ = marked()
    plain = nn.Parameter(parameter.detach().as_subclass(torch.Tensor).clone())
    plain.grad = torch.ones(3, 4)
    found, expected = ELEMENTS[use](parameter), ELEMENTS[use](plain)
    assert isinstance(parameter, nn.Parameter)
    assert isinstance(found, torch.Tensor) is isinstance(expected, torch.Tensor)
    for mine, theirs in ((parameter, plain), (parameter.grad, plain.grad)):
        assert torch.equal(mine.as_subclass(torch.Tensor), theirs)


def test_within_plain_tensors_are_what_they_were_and_marks_come_back():
    parameter, marks = marked()
    with marks.plain(), marks.plain():
        assert type(parameter) is nn.Parameter
        assert float(parameter.grad.norm()) == pytest.approx(12**0.5)
    assert type(parameter) is type(parameter.grad) is Local


def test_what_is_elsewhere_tells_its_shape_and_nothing_that_is_in_it():
    """Its memory is freed, as ZeRO 3 has it: torch would read what is not its own."""
    stale, (trained, _) = nn.Parameter(torch.zeros(3, 4)), marked()
    stale.untyped_storage().resize_(0)
    Marks((), ((stale, trained),)).put()
    assert type(stale) is type(stale.grad) is Elsewhere
    assert (stale.shape, stale.numel(), stale.requires_grad) == ((3, 4), 12, True)
    uses = (utils.clip_grad_value_, utils.clip_grad_norm_, lambda p, _: p.norm())
    for use in uses:
        with pytest.raises(InputError, match=r"take runner\.parameters\(\)"):
            use(stale, 1.0)
