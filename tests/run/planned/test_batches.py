"""Batches that are shorter, longer, empty or of other names: followed, or one line everywhere."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from gnnplace.errors import InputError
from gnnplace.planning.plans import JointPlan
from gnnplace.run.planned.batches import BatchForm
from gnnplace.run.workers.rig import run_group
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for


class Sentences(nn.Module):
    """Predicts a number a word, with weights of words if it is given them."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, words, wanted, weights=None, factor=1.0):
        found = self.head(torch.tanh(self.inner(self.embed(words)))).squeeze(-1)
        weighted = found if weights is None else found * weights
        return functional.mse_loss(weighted * factor, wanted)


class Classes(Sentences):
    """Its loss is a mean over labels that are not ignored."""

    def forward(self, words, wanted):
        found = functional.linear(
            torch.tanh(self.inner(self.embed(words))), self.embed.weight
        )
        return functional.cross_entropy(found.flatten(0, 1), wanted.flatten())


def batch(examples=8, length=5, classes=False):
    generator = torch.Generator().manual_seed(examples)
    shape = (examples, length)
    words = torch.randint(16, shape, generator=generator)
    wanted = torch.randn(shape, generator=generator)
    if classes:
        wanted = torch.where(torch.rand(shape, generator=generator) < 0.4, -100, words)
    return {"words": words, "wanted": wanted}


def made(kind=Sentences):
    torch.manual_seed(0)
    return Workload("sentences", kind(), batch(classes=kind is Classes), None)


def everywhere(plan, work, kind=Sentences):
    """What every process of a plan says; `work` gets its runner and its number."""

    def process(number):
        workload = made(kind)
        runner = JointPlan(plan.file).apply(workload.model, workload.inputs)
        return work(runner, number)

    names = [name for stage in plan.file.stages for row in stage.rows for name in row]
    return run_group(process, names, timeout=60.0)


def refusal(call, *arguments):
    try:
        call(*arguments)
    except InputError as error:
        return str(error)
    return ""


def odd_batches(examples=8):
    good = batch(examples)
    yield "examples", {k: x[:3] for k, x in good.items()}
    yield "different numbers of examples", good | {"wanted": good["wanted"][:2]}
    yield "was applied to ['examples', 5]", batch(examples, 7)
    yield "examples", {k: x[:0] for k, x in good.items()}
    yield (
        "has an unknown input ['weights']",
        good | {"weights": torch.ones(examples, 5)},
    )
    yield "has no input ['wanted']", {"words": good["words"]}
    yield "float64", good | {"wanted": good["wanted"].double()}
    yield (
        "different numbers of examples",
        {k: torch.tensor(1).to(x) for k, x in good.items()},
    )
    yield "no input", None


PLANS = ["pp=1,microbatch_size=2", "dp=2,microbatch_size=2,zero=3", "pp=2,microbatch_size=2",
         "pp=2,dp=2,microbatch_size=2"]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "whose"), [(w, "all") for w in PLANS] + [(w, "last") for w in PLANS[1:]]
)
def test_what_is_no_batch_is_one_line_on_every_process_and_training_goes_on(
    words, whose
):
    """On the last process alone too. Takes two seconds: four processes load the package."""
    plan = plan_for(made(), words, 4)

    def work(runner, place):
        share, last = (
            runner.share(batch()),
            place == runner.parameters_here.seat.seats.count - 1,
        )
        before, said = runner.step(share), []
        for _, odd in odd_batches(runner.examples):
            given = odd if whose == "all" or last else share
            said.append(refusal(runner.step, given))
        said.append(refusal(runner.evaluate, None if last or whose == "all" else share))
        mixed = runner.evaluate if last and whose == "last" else runner.step
        said.append(refusal(mixed, share if whose == "last" else None))
        return float(before), float(runner.step(share)), said, last

    for before, after, said, last in everywhere(plan, work):
        assert before == after
        assert all(said)
        assert not any("\n" in line for line in said)
        for (wanted, _), line in zip(odd_batches(), said, strict=False):
            asked = (
                wanted
                if last or whose == "all"
                else "another process refuses its batch"
            )
            assert asked in line
        if whose == "last":
            assert "some processes train while others evaluate" in said[-1]


@pytest.mark.parametrize("words", PLANS)
@pytest.mark.parametrize("kind", [Sentences, Classes])
def test_evaluation_of_any_number_of_examples_is_that_of_the_model(words, kind):
    """Shorter last batches, other lengths, replicas without examples. Takes two seconds."""
    plan = plan_for(made(kind), words, 4)
    sizes = [(8, 5), (5, 5), (3, 5), (1, 5)]

    def work(runner, place):
        found = []
        for examples, length in [*sizes, (8, 3)]:
            whole = batch(examples, length, kind is Classes)
            try:
                found.append(float(runner.evaluate(runner.share(whole))))
            except InputError as error:
                found.append(str(error))
        return found, refusal(
            runner.evaluate, runner.share(batch(0, 5, kind is Classes))
        )

    model = made(kind).model.eval()
    for found, empty in everywhere(plan, work, kind):
        assert "it has no examples" in empty
        for value, (examples, length) in zip(found, [*sizes, (8, 3)], strict=True):
            expected = float(model(**batch(examples, length, kind is Classes)))
            assert value == pytest.approx(expected, rel=1e-6)


def test_more_examples_than_the_plan_has_are_no_share():
    runner = applied = made()
    runner = plan_for(applied, PLANS[0], 1).apply(applied.model, applied.inputs)
    with pytest.raises(InputError, match="share: 9 examples; the plan's batch is 8"):
        runner.share(batch(9))


def test_names_may_come_in_any_order_and_lists_stand_for_tuples():
    """As `DataLoader` gives them; beside the model called as it is."""
    workload = made()
    plan = plan_for(workload, PLANS[0], 1)
    runner = plan.apply(copy.deepcopy(workload.model), workload.inputs)
    loss = runner.step(batch())
    turned = dict(reversed(batch().items()))
    assert torch.equal(runner.step(turned), loss)
    assert loss == pytest.approx(float(workload.model(**batch())), rel=1e-6)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    form = BatchForm.of(({"a": x, "b": y}, y), 4, "32-true")
    given = form.tensors([{"b": y, "a": x}, y])
    assert all(map(torch.equal, given, (x, y, y)))
    (loaded,) = DataLoader(TensorDataset(x, y), 4)
    assert isinstance(loaded, list)
    assert all(
        map(torch.equal, BatchForm.of((x, y), 4, "32-true").tensors(loaded), (x, y))
    )
    assert all(
        map(torch.equal, BatchForm.of(([x, y],), 4, "32-true").tensors(loaded), (x, y))
    )


def test_what_is_no_tensor_is_what_the_plan_was_applied_to():
    workload = made()
    workload.inputs["factor"] = 2.0
    plan = plan_for(workload, PLANS[0], 1)
    runner = plan.apply(workload.model, workload.inputs)
    runner.step(batch() | {"factor": 2.0})
    with pytest.raises(InputError, match=r"input \['factor'\] is 3\.0, and was 2\.0"):
        runner.step(batch() | {"factor": 3.0})
    with pytest.raises(InputError, match=r"has no input \['factor'\]"):
        runner.step(batch())
