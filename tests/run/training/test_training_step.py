"""A placed training step trains as PyTorch does: batches, schedules, state, save and resume."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import (
    ExecutionError,
    FormatError,
    InputError,
    MismatchError,
    UnsupportedError,
)
from gnnplace.problem.placement import write_placement
from gnnplace.run.placed.structure import with_optimizer
from gnnplace.run.training.training_step import TrainingStep
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.optimizers import make_optimizer as find_optimizer
from gnnplace.zoo import Workload
from tests.leftovers import workers
from tests.run.programs import cpu_cluster, random_placement
from tests.run.training.small import LOSS, batches, compiled, net, placed


def torch_losses(model, optimizer, given, schedule=lambda k: None, shares=1):
    losses = []
    for k, (words, targets) in enumerate(given):
        schedule(k)
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(words.chunk(shares), targets.chunk(shares), strict=True):
            loss = LOSS(model(x), y) / shares
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.9)),
}


@pytest.mark.parametrize(
    ("name", "microbatches"), [("sgd", 2), ("momentum", 1), ("adamw", 2)]
)
def test_it_trains_as_pytorch_does(name, microbatches):
    """New batches and a scheduled learning rate; then the model's own state."""
    mine, theirs, given = net(), net(), batches(4)
    optimizer = OPTIMIZERS[name](theirs.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    expected = []
    for k in range(len(given)):
        expected += torch_losses(
            theirs, optimizer, given[k : k + 1], shares=microbatches
        )
        schedule.step()
    optimizer = OPTIMIZERS[name](mine.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    with compiled(mine, optimizer, microbatches=microbatches) as step:
        losses = []
        for batch in given:
            losses.append(float(step(batch)))
            schedule.step()
        assert losses == pytest.approx(expected, rel=1e-5)
        state = step.state_dict()
    assert list(state) == list(theirs.state_dict())
    for key, tensor in theirs.state_dict().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-4, atol=1e-5)
    assert all(
        torch.equal(tensor, state[key]) for key, tensor in mine.state_dict().items()
    )


@pytest.mark.parametrize("microbatches", [1, 2])
def test_two_workers_give_the_losses_of_one_to_the_last_bit(microbatches):
    """With dropout, whose random numbers belong to op and step."""
    given, found = batches(3), []
    for devices in (1, 2):
        model = net(dropout=0.3)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        with compiled(model, optimizer, devices, microbatches) as step:
            found.append(([float(step(b)) for b in given], step.state_dict()))
    (losses, state), (again, same) = found
    assert losses == again
    assert len(set(losses)) == len(losses)
    assert all(torch.equal(state[key], same[key]) for key in state)


def test_saved_and_resumed_on_another_placement_it_goes_on_the_same(tmp_path):
    given, path = batches(6), tmp_path / "training.safetensors"
    model = net(dropout=0.2)
    with compiled(model, OPTIMIZERS["adamw"](model.parameters())) as step:
        for k, batch in enumerate(given[:3]):
            step.param_groups[0]["lr"] = 0.01 / (k + 1)
            step(batch)
        step.save(path)
        expected = [float(step(batch)) for batch in given[3:]]
    model = net(dropout=0.2)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with compiled(
        model, optimizer, devices=3, seed=5, mode="emulated", inputs=given[0]
    ) as step:
        step.resume(path)
        assert step.num_steps == 3
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 3)
        assert [float(step(batch)) for batch in given[3:]] == expected
    assert not list(tmp_path.glob(".*"))


def test_an_optimizer_that_has_trained_brings_its_state_along():
    given, model = batches(6), net()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    torch_losses(model, optimizer, given[:3])
    other = copy.deepcopy(model)
    twin = OPTIMIZERS["momentum"](other.parameters())
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with compiled(model, optimizer) as step:
        losses = [float(step(batch)) for batch in given[3:]]
    assert losses == pytest.approx(torch_losses(other, twin, given[3:]), rel=1e-5)


def test_groups_have_their_own_constants_and_frozen_parameters_stay():
    def groups(model):
        model.right.requires_grad_(False)
        fast = [{"params": model.left.parameters(), "lr": 0.5}]
        slow = [
            p
            for n, p in model.named_parameters()
            if not n.startswith(("left", "right"))
        ]
        return torch.optim.SGD([*fast, {"params": slow, "lr": 0.01}])

    mine, theirs, given = net(), net(), batches(4)
    expected = torch_losses(theirs, groups(theirs), given)
    optimizer = groups(mine)
    with compiled(mine, optimizer) as step:
        assert [float(step(batch)) for batch in given] == pytest.approx(
            expected, rel=1e-5
        )
        assert torch.equal(step.state_dict()["right.weight"], mine.right.weight)
        torch.testing.assert_close(step.state_dict()["left.weight"], theirs.left.weight)


def test_other_parameters_can_be_loaded():
    model, other = net(), net()
    nn.init.constant_(other.left.weight, 0.1)
    words, targets = batches(1)[0]
    with compiled(model, "sgd", inputs=(words, targets)) as step:
        step.load_state_dict(other.state_dict())
        assert float(step((words, targets))) == pytest.approx(
            LOSS(other(words), targets).item()
        )
        with pytest.raises(MismatchError, match="unread"):
            step.load_state_dict(
                {k: v for k, v in other.state_dict().items() if k != "unread"}
            )


def test_a_placement_file_says_it_all(tmp_path):
    """Micro-batches and grouping come from the file; nothing is measured."""
    model, path = net(), tmp_path / "placement.json"
    problem, placement = placed(microbatches=2)
    write_placement(path, placement, problem)
    data = path.read_text().replace(
        '"format"', '"x-capture": {"groups": 30}, "format"', 1
    )
    path.write_text(data)
    with gnnplace.compile(model, path, "sgd", loss=LOSS, timeout=30) as step:
        first = float(step(batches(1)[0]))
    with compiled(net(), "sgd", devices=1, microbatches=2) as step:
        assert float(step(batches(1)[0])) == first
    other = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(MismatchError, match="fingerprint"):
        gnnplace.compile(other, path, inputs=torch.zeros(4, 4))


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_a_placement_made_with_another_optimizer_can_be_trained_with_any(
    tmp_path, name
):
    model, path = net(), tmp_path / "placement.json"
    problem, placement = placed()
    write_placement(path, placement, problem)
    about = '"x-capture": {"groups": 30, "optimizer": "sgd"}, "format"'
    path.write_text(path.read_text().replace('"format"', about, 1))
    optimizer = OPTIMIZERS[name](model.parameters())
    with gnnplace.compile(model, path, optimizer, loss=LOSS, timeout=30) as step:
        assert torch.isfinite(step(batches(1)[0]))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_structure_with_another_optimizer_is_that_of_a_capture_with_it(name):
    def fingerprint(program):
        bare = replace(program, initial={})
        return profile(bare, cpu_cluster(2), groups=30).fingerprint

    model, inputs = net(), batches(1)[0]
    first = capture(
        model, inputs, loss=LOSS, optimizer={"sgd": "adamw", "adamw": "sgd"}[name]
    )
    second = capture(model, inputs, loss=LOSS, optimizer=name)
    assert fingerprint(with_optimizer(first, find_optimizer(name))) == fingerprint(
        second
    )


def test_steps_have_clocks():
    with compiled(net(), "sgd") as step:
        step(batches(1)[0])
        timing = step.timing()
    assert timing.virtual > 0
    assert {op.device for op in timing.ops} == {"cpu:0", "cpu:1"}


def test_a_worker_that_dies_ends_it_and_the_state_can_still_be_read():
    step = compiled(net(), "sgd")
    step(batches(1)[0])
    os.kill(workers()[0].pid, signal.SIGKILL)
    with pytest.raises(ExecutionError, match="SIGKILL"):
        step(batches(1)[0])
    assert workers() == []
    assert torch.isfinite(step.state_dict()["left.weight"]).all()
    with pytest.raises(ExecutionError, match="ended"):
        step(batches(1)[0])
    step.close()


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        ((torch.zeros(7, dtype=torch.long), torch.zeros(7, dtype=torch.long)), "shape"),
        ((torch.zeros(8), torch.zeros(8, dtype=torch.long)), "float32"),
        ((torch.zeros(8, dtype=torch.long),), r"has no input \[1\]"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_the_step_goes_on(batch, complaint):
    with compiled(net(), "sgd") as step:
        step(batches(1)[0])
        with pytest.raises(InputError, match=complaint):
            step(batch)
        assert step.num_steps == 1
        step(batches(1)[0])


def hooked(optimizer):
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: None)
    return optimizer


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS: its step needs a closure"),
        (lambda p: torch.optim.Adam(p, capturable=True), "supported devices"),
        (lambda p: torch.optim.SGD(list(p)[:2], lr=0.1), "in none of its groups"),
        (
            lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(2))], lr=0.1),
            "not the model's",
        ),
        (lambda p: hooked(torch.optim.SGD(p, lr=0.1)), "hooks of its step"),
    ],
)
def test_an_optimizer_that_cannot_be_placed_is_told(make, complaint):
    model = net()
    problem, placement = placed()
    with pytest.raises(UnsupportedError, match=complaint):
        gnnplace.compile(
            model,
            placement,
            make(model.parameters()),
            loss=LOSS,
            inputs=batches(1)[0],
            problem=problem,
        )


def test_a_file_that_is_none_or_of_another_model_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    with compiled(net(), "sgd", inputs=batches(1)[0]) as step:
        with pytest.raises(FormatError, match="cannot be read"):
            step.resume(path)
        path.write_text("{}")
        with pytest.raises(FormatError, match="cannot be read"):
            step.resume(path)
        with pytest.raises(InputError, match="cannot be written"):
            step.save(tmp_path / "nowhere" / "x")
    model = net()
    with compiled(
        model, OPTIMIZERS["adamw"](model.parameters()), inputs=batches(1)[0]
    ) as step:
        step.save(path)
    with (
        compiled(net(), "sgd", inputs=batches(1)[0]) as step,
        pytest.raises(MismatchError, match="optimizer"),
    ):
        step.resume(path)


def test_before_the_first_batch_there_is_the_model_s_state_alone():
    model = net()
    step = compiled(model, "sgd")
    assert isinstance(step, TrainingStep)
    assert torch.equal(step.state_dict()["left.weight"], model.left.weight)
    with pytest.raises(InputError, match="nothing is captured"):
        step.save("x")


class Weighing(nn.Module):
    def __init__(self, trained):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(11)) if trained else None
        self.register_buffer("factor", torch.full((), 2.0))

    def forward(self, output, targets):
        weight = 1 if self.weight is None else self.weight
        return LOSS(output * weight, targets) * self.factor


def test_a_loss_may_have_buffers_but_no_parameters():
    model, (problem, placement) = net(), placed()
    with pytest.raises(
        UnsupportedError, match="the loss has a parameter 'weight' of its own"
    ):
        gnnplace.compile(
            model, placement, loss=Weighing(True), inputs=batches(1)[0], problem=problem
        )
    workload = Workload("Net", model, batches(1)[0], Weighing(False))
    program = capture(workload.model, workload.inputs, loss=workload.loss)
    problem = profile(replace(program, initial={}), cpu_cluster(1), groups=30)
    placement = random_placement(problem, 0, shuffle=False)
    options = {"loss": Weighing(False), "problem": problem, "timeout": 30.0}
    with gnnplace.compile(model, placement, "sgd", **options) as step:
        loss, state = step(batches(1)[0]), step.state_dict()
    words, targets = batches(1)[0]
    assert float(loss) == pytest.approx(
        2 * float(LOSS(net()(words), targets)), rel=1e-6
    )
    assert set(state) == set(model.state_dict())


def test_what_changes_after_compile_is_followed_or_refused():
    """New memory and cleared momentum train on as in PyTorch; other changes are named."""

    def changed(k, model, optimizer):
        if k == 2:
            first = next(model.parameters())
            first.data = torch.full_like(first, 0.01)
            optimizer.state.clear()

    mine, theirs, given = net(), net(), batches(4)
    optimizer = OPTIMIZERS["momentum"](theirs.parameters())
    schedule = lambda k: changed(k, theirs, optimizer)  # noqa: E731
    expected = torch_losses(theirs, optimizer, given, schedule)
    own = OPTIMIZERS["momentum"](mine.parameters())
    with compiled(mine, own) as step:
        losses = []
        for k, batch in enumerate(given):
            changed(k, mine, own)
            losses.append(float(step(batch)))
        assert losses == pytest.approx(expected, rel=1e-5)
        name, first = next(mine.named_parameters())
        first.requires_grad_(False)
        with pytest.raises(
            MismatchError, match=f"parameter '{name}': its requires_grad was True"
        ):
            step(given[0])
        first.requires_grad_(True)
        first.register_hook(lambda g: 2 * g)
        with pytest.raises(MismatchError, match=f"parameter '{name}' has other hooks"):
            step.loss(given[0])
