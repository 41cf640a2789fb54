"""A plan for one device in this process, beside the model as the user has it."""

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from gnnplace.errors import InputError, MismatchError
from gnnplace.planning.plans import JointPlan
from gnnplace.plans.plan import Plan
from gnnplace.plans.reading import plan_from_data
from gnnplace.run.planned.apply import apply_plan
from gnnplace.run.planned.trial import compare_gradients
from tests.run.planned.toys import attending, eager, plan_for, toy, toy_plan

WORDS = "pp=1,microbatch_size=4"
TIED = "first.weight"


@pytest.fixture(scope="module")
def plan():
    return toy_plan(WORDS, 1)


def applied(plan, workload, **options):
    return plan.apply(workload.model, workload.inputs, loss=workload.loss, **options)


def with_rows(plan, rows):
    """The plan with other rows, and no word of how much they may keep."""
    stages = [plan.file.stages[0].model_copy(update={"saved": None})]
    return Plan(plan.file.model_copy(update={"actions": rows, "stages": stages}))


def passes(kinds, count=4):
    """Rows of one rank: all forward passes, then the others micro-batch by micro-batch."""
    row = [f"0F{m}" for m in range(count)]
    return [[*row, *(f"0{kind}{m}" for kind in kinds for m in range(count))]]


def step_of(plan, workload):
    model = copy.deepcopy(workload.model)
    runner = apply_plan(plan, model, workload.inputs, loss=workload.loss)
    return runner.step(workload.inputs), runner


def assert_same(found, expected, kinds):
    """Bitwise, but for a tied weight, whose two gradients I and W add in another order."""
    different = compare_gradients(found, expected, 1e-6)
    assert {d.name for d in different} <= ({TIED} if kinds == "IW" else set())
    assert all(d.passed for d in different)


@pytest.mark.parametrize("kinds", ["B", "IW"])
def test_loss_gradients_and_running_statistics_are_bitwise_those_of_the_model(
    plan, kinds
):
    workload = toy()
    loss, gradients, model = eager(plan, workload)
    found, runner = step_of(with_rows(plan, passes(kinds)), workload)
    assert torch.equal(found, loss)
    assert_same(runner.gradients(), gradients, kinds)
    assert gradients.keys() == runner.gradients().keys()
    for name, buffer in model.named_buffers():
        assert torch.equal(runner.state_dict()[name], buffer), name


@pytest.mark.parametrize("kinds", ["B", "IW"])
def test_recomputation_changes_no_bit_and_counts_statistics_once(kinds):
    workload = toy()
    plan = plan_for(workload, f"{WORDS},recompute=full", 1)
    assert plan.file.stages[0].recompute.kind == "full"
    loss, gradients, model = eager(plan, workload)
    found, runner = step_of(with_rows(plan, passes(kinds)), workload)
    assert torch.equal(found, loss)
    assert_same(runner.gradients(), gradients, kinds)
    for name, buffer in model.named_buffers():
        assert torch.equal(runner.state_dict()[name], buffer), name


class Counted(TorchDispatchMode):
    """Counts ops by name."""

    def __init__(self):
        super().__init__()
        self.ops = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("word", "softmaxes", "gelus", "kept"),
    [
        ("none", 4, 4, None),
        ("selective", 8, 4, None),
        ("full", 8, 8, 4),
        ("uniform:2", 8, 8, 2),
        ("uniform:3", 8, 8, 1),
        ("block:1", 5, 5, None),
    ],
)
def test_what_a_word_recomputes_is_computed_twice_with_the_same_masks(
    word, softmaxes, gelus, kept
):
    """Of four layers of attention that is written out, in four micro-batches."""
    workload = attending()
    plan = plan_for(workload, f"microbatch_size=2,recompute={word}", 1)
    loss, gradients, _ = eager(plan, workload)
    found, runner = step_of(plan, workload)
    assert torch.equal(found, loss)
    assert_same(runner.gradients(), gradients, "B")
    with Counted() as count:  # the first step proves itself, too
        runner.step(workload.inputs)
    assert count.ops["_softmax"] == 4 * softmaxes
    assert count.ops["gelu"] == 4 * gelus
    # What enters groups of layers, of which the head is a fifth; not inputs.
    if kept is not None:
        assert plan.file.stages[0].saved == kept * (2 * 6 * 8 * 4)


def test_selective_recomputation_frees_what_attention_makes():
    """As plain PyTorch keeps them: probabilities, a mask and what is left, each like scores."""
    query = torch.randn(2, 2, 6, 4, requires_grad=True)
    held: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: held.update({x.data_ptr(): x.nbytes}) or x, lambda x: x
    ):
        chances = torch.softmax(query @ query.transpose(-1, -2) / 2.0, -1)
        made = functional.dropout(chances, 0.25) @ query
    assert made.requires_grad
    scores = sum(held.values()) - query.nbytes
    saved = [
        plan_for(attending(), f"microbatch_size=2,recompute={word}", 1)
        .file.stages[0]
        .saved
        for word in ("none", "selective")
    ]
    assert saved[0] - saved[1] == 4 * scores  # of four layers


def test_steps_draw_other_masks_and_leave_the_generator_alone(plan):
    runner = applied(plan, workload := toy())
    state = torch.get_rng_state()
    first, second = runner.step(workload.inputs), runner.step(workload.inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, second)
    runner.steps = 0
    assert torch.equal(runner.step(workload.inputs), first)


def test_a_sum_is_added_up_and_not_averaged():
    workload = toy()
    plan = plan_for(workload, WORDS, 1)
    mean, _ = step_of(plan, workload)
    runner = applied(plan, toy(), reduction="sum")
    assert runner.step(workload.inputs) == pytest.approx(float(mean) * 4, rel=1e-6)
    with pytest.raises(InputError, match="must be mean or sum"):
        applied(plan, toy(), reduction="max")


def test_clipping_is_that_of_torch(plan):
    workload = toy()
    runner = applied(plan, workload)
    runner.step(workload.inputs)
    own = [p.grad.clone() for p in runner.parameters()]
    like = [torch.nn.Parameter(torch.zeros_like(g)) for g in own]
    for parameter, gradient in zip(like, own, strict=True):
        parameter.grad = gradient
    expected = torch.nn.utils.clip_grad_norm_(like, 0.01)
    assert runner.clip_grad_norm_(0.01) == pytest.approx(float(expected), rel=1e-6)
    for parameter, other in zip(runner.parameters(), like, strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


def test_state_goes_to_another_runner_and_training_goes_on_alike(plan):
    workload = toy()
    one = applied(plan, workload)
    optimizer = torch.optim.AdamW(one.parameters(), lr=1e-2)
    for _ in range(2):
        one.step(workload.inputs)
        optimizer.step()
    other = applied(plan, toy())
    second = torch.optim.AdamW(other.parameters(), lr=1e-2)
    saved = one.state_dict()
    assert saved.keys() >= set(dict(toy().model.named_parameters()))
    other.load_state_dict(saved)
    other.load_optimizer_state_dict(second, one.optimizer_state_dict(optimizer))
    other.steps = one.steps
    for runner, each in ((one, optimizer), (other, second)):
        runner.step(workload.inputs)
        each.step()
    for (name, a), (_, b) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def test_a_first_state_is_no_step(plan):
    workload = toy()
    runner = applied(plan, workload)
    optimizer = torch.optim.AdamW(runner.parameters(), lr=1e-2, weight_decay=0.1)
    before = [p.detach().clone() for p in runner.parameters()]
    state = runner.optimizer_state_dict(optimizer)
    assert all(bool((value == 0).all()) for value in state.values())
    assert all(
        torch.equal(a, b) for a, b in zip(before, runner.parameters(), strict=True)
    )
    assert optimizer.param_groups[0]["lr"] == 1e-2


def test_what_does_not_fit_is_one_line(plan):
    workload = toy()
    runner = applied(plan, workload)
    with pytest.raises(
        InputError, match="8 examples; a replica's share is 4 micro-batches of 4"
    ):
        runner.step(tuple(x[:8] for x in workload.inputs))
    with pytest.raises(InputError, match=r"has no input \[1\]"):
        runner.step(workload.inputs[:1])
    with pytest.raises(MismatchError, match="made for another model"):
        applied(plan, toy(width=16))
    with pytest.raises(InputError, match=r"has no 'first\.weight'"):
        runner.load_state_dict({})
    many = toy_plan("pp=2,microbatch_size=4", 2)
    with pytest.raises(
        InputError, match="start the script with torchrun --nproc-per-node 2"
    ):
        applied(many, toy())


def test_inputs_may_be_those_that_the_plan_was_made_with(plan):
    workload = toy()
    loss, gradients, _ = eager(plan, workload)
    runner = read_again(plan).apply(workload.model, loss=workload.loss)
    assert torch.equal(runner.step(workload.inputs), loss)
    assert_same(runner.gradients(), gradients, "B")
    none = Plan(plan.file.model_copy(update={"inputs": []}))
    with pytest.raises(
        InputError, match="has no shapes of inputs; give example inputs"
    ):
        apply_plan(none, toy().model, None, loss=workload.loss)


def read_again(plan):
    """The plan of its file."""
    return JointPlan(plan_from_data(plan.to_data(), "plan").file)


def test_a_precision_that_nobody_knows_is_named(plan):
    odd = Plan(plan.file.model_copy(update={"precision": "8-mixed"}))
    workload = toy()
    with pytest.raises(InputError, match="'8-mixed': unknown"):
        apply_plan(odd, workload.model, workload.inputs, loss=workload.loss)


def test_master_copies_are_trained_and_half_parameters_follow():
    plan, workload = toy_plan(WORDS, 1, precision="bf16-master"), toy()
    runner = applied(plan, workload)
    masters = dict(runner.named_parameters())
    assert {p.dtype for p in masters.values()} == {torch.float32}
    optimizer = torch.optim.SGD(runner.parameters(), lr=1e-4)
    before = {name: p.detach().clone() for name, p in masters.items()}
    runner.step(workload.inputs)
    grads = {name: p.grad.clone() for name, p in masters.items()}
    optimizer.step()
    for name, held in runner.parameters_here.held.items():
        expected = before[name] - 1e-4 * grads[name]
        # Too little for bfloat16 to tell.
        assert torch.equal(masters[name].detach(), expected)
        assert held.leaf.dtype == torch.bfloat16
    runner.step(workload.inputs)
    with runner.marks.plain():
        for name, held in runner.parameters_here.held.items():
            assert torch.equal(held.leaf.detach(), masters[name].detach().bfloat16())
    state = runner.state_dict()
    assert all(torch.equal(state[name], p) for name, p in masters.items())
    runner.load_state_dict(
        {name: 2 * t if t.is_floating_point() else t for name, t in state.items()}
    )
    assert all(torch.equal(2 * state[name], p.detach()) for name, p in masters.items())


@pytest.mark.parametrize("precision", ["16-mixed", "16-master"])
def test_half_gradients_are_scaled_and_steps_that_overflow_are_dropped(precision):
    plan, workload = toy_plan(WORDS, 1, precision=precision), toy()
    runner = applied(plan, workload)
    runner.loss_scale.factor = 2.0**6
    loss = runner.step(workload.inputs)
    assert {p.grad.dtype for p in runner.parameters()} == {torch.float32}
    plain = applied(plan, toy())
    plain.loss_scale = None
    assert torch.equal(plain.step(workload.inputs), loss)
    different = compare_gradients(runner.gradients(), plain.gradients(), 5e-2)
    assert all(d.passed for d in different)
    factor = runner.loss_scale.factor
    runner.step(tuple(1e30 * x for x in workload.inputs))
    assert all(p.grad is None for p in runner.parameters())
    assert runner.loss_scale.factor == factor / 2


def test_gradients_of_several_steps_are_refused_by_the_optimizer_that_finds_the_last_alone():
    """Those that an optimizer took, that are zeroed, or that none takes stand in no one's way."""
    work = toy()
    runner = toy_runner_of(work)
    first, *rest = runner.parameters()
    head, others = torch.optim.SGD([first], lr=0.1), torch.optim.SGD(rest, lr=0.1)
    for _ in range(3):
        runner.step(work.inputs)
        head.step()
    with pytest.raises(InputError, match="those of several steps do not add up"):
        others.step()
    others.zero_grad(set_to_none=False)
    others.step()
    runner.step(work.inputs)
    others.step()
    head.step()


def test_a_loss_that_reads_what_the_loop_changes_is_refused():
    held = {"beta": 1.0}

    def loss(output, target):
        return functional.mse_loss(output, target) * held["beta"]

    work = toy()
    plan = plan_for(replace(work, loss=loss), "microbatch_size=16", 1)
    runner = plan.apply(toy().model, work.inputs, loss=loss)
    runner.step(work.inputs)
    held["beta"] = 0.5
    with pytest.raises(
        MismatchError, match="function loss: its held holds other values"
    ):
        runner.step(work.inputs)


def test_where_nothing_is_trained_an_optimizer_can_be_made_all_the_same():
    """A stage of frozen layers, or of none that have parameters."""
    work = toy()
    work.model.blocks.requires_grad_(False)
    runner = toy_runner_of(work)
    kept = {name: p for name, p in runner.named_parameters() if p.requires_grad}
    assert len([p for p in runner.parameters() if p.requires_grad]) == len(kept)
    for held in runner.parameters_here.held.values():
        held.learned.requires_grad_(False)
        held.leaf.requires_grad_(False)
    (nothing,) = (p for p in runner.parameters() if p.requires_grad)
    optimizer = torch.optim.AdamW([nothing])
    optimizer.step()
    assert runner.optimizer_state_dict(optimizer) == {}


def toy_runner_of(work):
    plan = plan_for(work, "microbatch_size=16", 1)
    return plan.apply(work.model, work.inputs, loss=work.loss)
