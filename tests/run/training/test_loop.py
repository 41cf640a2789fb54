"""A loop of one's own as PyTorch's users write it, with the loss computed by the workers."""

from __future__ import annotations

import copy
import gc
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn, optim

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InputError, MismatchError, UnsupportedError
from gnnplace.tracing.models import capture
from tests.leftovers import workers
from tests.run.programs import cpu_cluster, random_placement
from tests.run.training import optimizers
from tests.run.training.small import LOSS, batches, net
from tests.run.training.test_opaque_optimizer import same


def compiled(model, problem, optimizer, **options):
    options = {"loss": LOSS, "problem": problem[0], "timeout": 30.0} | options
    return gnnplace.compile(model, problem[1], optimizer, **options)


class Eager:
    """What `step.loss` stands for."""

    def __init__(self, model):
        self.model = model

    def loss(self, batch):
        return LOSS(self.model(batch[0]), batch[1])


def adam(model):
    return optim.Adam(model.parameters(), lr=0.02)


def clip_norm(model, optimizer, step, given):
    for batch in given:
        optimizer.zero_grad()
        loss = step.loss(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        yield loss.item()
        yield norm.item()


def clip_value(model, optimizer, step, given):
    for batch in given:
        loss = step.loss(batch)
        # Between loss and backward, as Lightning does.
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        yield loss.item()


def accumulate(model, optimizer, step, given):
    for k, batch in enumerate(given):
        loss = step.loss(batch)
        (loss / 2).backward()
        yield loss.item()
        if k % 2:
            optimizer.step()
            optimizer.zero_grad()


def keep(model, optimizer, step, given):
    """Gradients are kept as they are, added up by hand and put back."""
    kept = []
    for batch in given:
        optimizer.zero_grad()
        loss = step.loss(batch)
        loss.backward()
        yield loss.item()
        kept.append([p.grad for p in model.parameters()])
        if len(kept) == 3:
            for parameter, *some in zip(model.parameters(), *kept, strict=True):
                parameter.grad = torch.stack(some).mean(0)
            optimizer.step()
            kept.clear()


def evaluate(model, optimizer, step, given):
    for batch in given:
        loss = step.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            yield LOSS(model(batch[0]), batch[1]).item()
        model.train()


def own_gradients(model, optimizer, step, given):
    """A term of one's own, gradients replaced, a parameter left out, a closure."""
    for batch in given:
        (step.loss(batch) + 0.1 * model.left.weight.pow(2).sum()).backward()
        model.left.bias.grad = model.left.bias.grad * 2
        model.right.bias.grad = None
        yield optimizer.step(lambda: 1.0)
        optimizer.zero_grad()


LOOPS = [clip_norm, clip_value, accumulate, keep, evaluate, own_gradients]


@pytest.mark.parametrize("loop", LOOPS)
def test_it_is_the_loop_without_workers_to_the_last_bit(loop, problem):
    """Schedulers, made before and after, have nothing to warn of."""
    mine, theirs, given = net(), net(), batches(4)
    found = []
    for model in (theirs, mine):
        optimizer = adam(model)
        schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        step = Eager(model) if model is theirs else compiled(model, problem, optimizer)
        later = optim.lr_scheduler.ConstantLR(optimizer, 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append([])
            for value in loop(model, optimizer, step, given):
                found[-1].append(value)
            schedule.step()
            later.step()
        found.append(optimizer)
    step.close()
    (expected, reference, losses, optimizer) = found
    assert losses == expected
    assert same(optimizer.state_dict(), reference.state_dict())
    assert all(
        map(torch.equal, mine.state_dict().values(), theirs.state_dict().values())
    )


def test_model_and_optimizer_are_saved_loaded_and_trained_on_as_usual(
    problem, tmp_path
):
    """A checkpoint of PyTorch's in the middle; then a plain loop goes on from either."""
    given, model = batches(6), net()
    optimizer, path = adam(model), tmp_path / "checkpoint.pt"
    with compiled(model, problem, optimizer) as step:
        first = [float(step(batch)) for batch in given[:2]]
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path
        )
        save_file(dict(model.named_parameters()), tmp_path / "model.safetensors")
        there = [float(step(batch)) for batch in given[2:4]]
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        assert [float(step(batch)) for batch in given[2:4]] == there
    assert "step" not in vars(optimizer)
    plain = net()
    plain.load_state_dict(kept["model"])
    other = adam(plain)
    other.load_state_dict(kept["optimizer"])
    assert len(set(first)) == 2
    assert next(clip_norm(plain, other, Eager(plain), given[2:4])) == there[0]
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["left.weight"], kept["model"]["left.weight"])


def test_the_state_of_another_optimizer_is_refused(problem):
    model, other, batch = net(), net(), batches(1)[0]
    optimizer = optimizers.Lion(model.parameters())
    foreign = optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    Eager(other).loss(batch).backward()
    foreign.step()
    with compiled(model, problem, optimizer, inputs=batch) as step:
        step(batch)
        why = r"not that of Lion with these options \(its entries are momentum_buffer\)"
        with pytest.raises(MismatchError, match=why):
            optimizer.load_state_dict(foreign.state_dict())


def test_closed_it_is_a_plain_model_that_trains_on(problem):
    given, model = batches(4), net()
    optimizer = optim.AdamW(model.parameters(), lr=0.02)
    with compiled(model, problem, optimizer) as step:
        for batch in given[:2]:
            step(batch)
    twin = copy.deepcopy(model)
    other = optim.AdamW(twin.parameters(), lr=0.02)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    found = [
        list(clip_norm(m, o, Eager(m), given[2:]))
        for m, o in [(model, optimizer), (twin, other)]
    ]
    assert found[0] == found[1]
    assert all(int(state["step"]) == 4 for state in optimizer.state.values())


def test_dropped_without_closing_it_ends_its_workers_and_leaves_plain_ones(problem):
    given, model = batches(2), net()
    optimizer = adam(model)
    step = compiled(model, problem, optimizer)
    step(given[0])
    del step
    gc.collect()
    assert workers() == []
    assert float(optimizer.state[model.left.weight]["step"]) == 1
    before = model.left.weight.detach().clone()
    assert next(clip_norm(model, optimizer, Eager(model), given[1:])) > 0
    list(clip_norm(model, optimizer, Eager(model), given[1:]))
    assert not torch.equal(model.left.weight, before)
    assert model.state_dict().keys() == net().state_dict().keys()


def test_gradients_alone_for_an_optimizer_that_is_not_placed(problem):
    given, mine, theirs = batches(3), net(), net()
    found = []
    for model in (theirs, mine):
        optimizer = optimizers.Coupled(model.parameters())
        step = Eager(model) if model is theirs else compiled(model, problem, None)
        found.append(list(clip_norm(model, optimizer, step, given)))
    with pytest.raises(InputError, match="no optimizer was given"):
        step(given[0])
    step.close()
    assert found[0] == found[1]


def test_autograd_grad_gives_the_gradients_of_eager_pytorch(problem):
    """Also backward(inputs=...), with a factor; no graph of them, none of hooked parameters."""
    (given,), mine, theirs = batches(1), net(), net()
    names = [name for name, _ in mine.named_parameters()]
    with compiled(mine, problem, adam(mine)) as step:
        want = torch.autograd.grad(
            3 * Eager(theirs).loss(given), list(theirs.parameters())
        )
        found = torch.autograd.grad(3 * step.loss(given), list(mine.parameters()))
        torch.testing.assert_close(found, want)
        (2 * step.loss(given)).backward(inputs=[mine.left.weight])
        expected = want[names.index("left.weight")] / 3 * 2
        torch.testing.assert_close(mine.left.weight.grad, expected)
        assert mine.right.weight.grad is None
        with pytest.raises(InputError, match="create_graph"):
            torch.autograd.grad(step.loss(given), [mine.left.weight], create_graph=True)


def test_gradients_are_handed_over_once_and_before_the_next(problem):
    given, model = batches(2), net()
    optimizer = adam(model)
    with compiled(model, problem, optimizer) as step:
        with pytest.raises(InputError, match="nothing is captured"):
            optimizer.step()
        first, second = step.loss(given[0]), step.loss(given[1])
        with pytest.raises(InputError, match="a later batch"):
            first.backward()
        second.backward(retain_graph=True)
        with pytest.raises(InputError, match="handed over already"):
            second.backward()
        optimizer.step()


def test_trained_in_another_type_the_model_is_brought_up_to_date_when_it_is_read():
    program = capture(net(), batches(1)[0], loss=LOSS, dtype="bfloat16")
    known = profile(replace(program, initial={}), cpu_cluster(1), groups=30)
    problem = known, random_placement(known, 0, shuffle=False)
    model, eager, given = net(), net(), batches(2)
    expected = torch.optim.SGD(eager.parameters(), lr=0.1)
    for batch in given:
        LOSS(eager(batch[0]), batch[1]).backward()
        expected.step()
        expected.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with compiled(model, problem, optimizer, dtype="bfloat16") as step:
        step(given[0])
        with pytest.raises(
            UnsupportedError, match=r"in torch.bfloat16.*call step\(batch\)"
        ):
            step.loss(given[0])
        assert not torch.equal(model.state_dict()["left.weight"], net().left.weight)
        model.load_state_dict(net().state_dict())
        for batch in given:
            step(batch)
    assert model.left.weight.dtype == torch.float32
    torch.testing.assert_close(model.left.weight, eager.left.weight, rtol=0, atol=0.02)


class Center(nn.Module):
    """A loss that keeps a mean of the scores and reads it, and class weights of a list."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3, dtype=torch.float64))
        self.weights = [torch.ones(3, dtype=torch.float64)]

    def forward(self, scores, target):
        loss = nn.functional.cross_entropy(
            scores - self.center, target, self.weights[0]
        )
        self.center.mul_(0.9).add_(scores.detach().mean(0), alpha=0.1)
        return loss


def eagerly(model, loss, batch):
    return loss(model(batch[0]), batch[1])


def centered(model, optimizer, loss, step, given):
    for batch in given:
        optimizer.zero_grad()
        value = step(batch)
        value.backward()
        optimizer.step()
        yield value
        loss.weights[0][0] *= 2.0
        loss.weights[0].data[1] *= 0.5
        yield loss.center.clone()
    loss.center.data = torch.ones(3, dtype=torch.float64)
    yield step(given[0])


def test_tensors_of_the_loss_are_followed_and_kept_up_and_it_has_the_models_type():
    """Those it changes itself, and those that the loop changes between steps."""
    found = []
    for placed in (False, True):
        torch.manual_seed(0)
        model, loss = (
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
            Center(),
        )
        x = torch.randn(3, 8, 4, dtype=torch.float64)
        given = [(one, torch.arange(8) % 3) for one in x]
        optimizer = adam(model)
        if placed:
            program = capture(model, given[0], loss=loss)
            problem = profile(replace(program, initial={}), cpu_cluster(2), groups=8)
            placement = random_placement(problem, 0, shuffle=False)
            options = {
                "loss": loss,
                "problem": problem,
                "inputs": given[0],
                "timeout": 30.0,
            }
            with gnnplace.compile(model, placement, optimizer, **options) as step:
                found.append([*centered(model, optimizer, loss, step.loss, given)])
        else:
            found.append(
                [
                    *centered(
                        model, optimizer, loss, partial(eagerly, model, loss), given
                    )
                ]
            )
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_a_loss_that_reads_a_number_which_the_loop_changes_is_refused(problem):
    held = {"smooth": 0.0}

    def loss(scores, target):
        return LOSS(scores, target, label_smoothing=held["smooth"])

    model = net()
    with compiled(model, problem, adam(model), loss=loss) as step:
        step(batches(1)[0])
        held["smooth"] = 0.1
        with pytest.raises(
            MismatchError, match="function loss: its held holds other values"
        ):
            step(batches(1)[0])


def test_autocast_is_captured_with_the_first_batch_and_then_may_not_change(problem):
    """In a step that was captured outside of it every op would be as it was, without a word."""
    given, losses = batches(2), []
    with torch.autocast("cpu", torch.bfloat16):
        program = capture(net(), given[0], loss=LOSS)
        placement = random_placement(
            found := profile(program, cpu_cluster(2)), 0, shuffle=False
        )
    for cast in (False, True):
        pair, model = (found, placement) if cast else problem, net()
        with compiled(model, pair, adam(model)) as step:
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                losses.append(float(step(given[0])))
            told = r"is (off|torch\.bfloat16 \(cpu\)), and was"
            with (
                pytest.raises(MismatchError, match=told),
                torch.autocast("cpu", torch.bfloat16, enabled=not cast),
            ):
                step.loss(given[1])
    with torch.autocast("cpu", torch.bfloat16):
        assert losses[1] == Eager(net()).loss(given[0]).item() != losses[0]


def placed_of(model, optimizer, loss, batch):
    """A step on two workers whose loss may hold other models."""
    program = capture(model, batch, loss=loss)
    problem = profile(replace(program, initial={}), cpu_cluster(2), groups=8)
    placement = random_placement(problem, 0, shuffle=False)
    options = {"loss": loss, "problem": problem, "inputs": batch, "timeout": 30.0}
    return gnnplace.compile(model, placement, optimizer, **options)


def adversaries(first, moved):
    """Two models, each in the other's loss; the one that judges is compiled before or after.

    With `moved` its parameters get other memory, as by an average of weights through `.data`.
    """
    torch.manual_seed(0)
    made, judge = nn.Linear(4, 3).double(), nn.Linear(3, 300).double()
    given = torch.randn(8, 4, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    shown = torch.randn(8, 3, dtype=torch.float64), given[1]

    def judged(scores, target):
        return judge(scores).square().mean() + target.mean()

    def judging(scores, target):
        return (scores - 1).square().mean() + target.mean()

    models = ((judge, judging, shown), (made, judged, given))
    makers = {model: optim.SGD(model.parameters(), lr=0.1) for model, _, _ in models}
    steps = {}
    if first is not None:
        for model, loss, batch in models if first else reversed(models):
            steps[model] = placed_of(model, makers[model], loss, batch)
    for _ in range(3):
        for model, loss, batch in models:
            makers[model].zero_grad()
            value = (
                steps[model].loss(batch) if steps else loss(model(batch[0]), batch[1])
            )
            value.backward()
            makers[model].step()
        if moved:
            for parameter in judge.parameters():
                parameter.data = parameter.data * 0.9
    for step in steps.values():
        step.close()
    return [p.detach().clone() for model, _, _ in models for p in model.parameters()]


@pytest.mark.parametrize(
    ("first", "moved"), [(True, False), (False, False), (False, True)]
)
def test_a_model_in_the_loss_of_another_is_followed_wherever_its_numbers_are(
    first, moved
):
    for ours, plain in zip(
        adversaries(first, moved), adversaries(None, moved), strict=True
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "change", [{"maximize": True}, {"nesterov": True}, {"momentum": 0.0}]
)
def test_an_option_by_which_updates_compute_otherwise_may_not_change(change, problem):
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with compiled(model, problem, optimizer) as step:
        step(batches(1)[0])
        optimizer.param_groups[0].update(change)
        (name,) = change
        with pytest.raises(MismatchError, match=f"its {name} has changed"):
            step(batches(1)[0])
