"""Evaluation and states of a model that has parts of its parameters, beside the plain model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import InputError
from gnnplace.planning.plans import JointPlan
from gnnplace.run.workers.rig import run_group
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for


class Words(nn.Module):
    """Tied tables, dropout, running statistics of one layer, and a layer that nothing reads."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.dropout, self.unused = nn.Dropout(0.5), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        return self.head(
            self.dropout(self.norm(torch.tanh(self.inner(self.embed(words)))))
        )


USES = (
    lambda model, words: model(words),
    lambda model, words: model.inner(torch.zeros(8)),
    lambda model, words: model.norm.state_dict(),
    lambda model, words: model.load_state_dict({}),
    lambda model, words: copy.deepcopy(model),
)
"""What a model in parts refuses."""
NUMBERS = (
    lambda model, runner: nn.utils.clip_grad_norm_(runner.parameters(), 1.0),
    lambda model, runner: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    lambda model, runner: sum(p.grad.norm() ** 2 for p in runner.parameters()),
    lambda model, runner: torch.optim.Adafactor(runner.parameters()).step(),
    lambda model, runner: nn.parallel.DistributedDataParallel(model),
    lambda model, runner: (runner.step(runner.share(words().inputs)) / 4).backward(),
    lambda model, runner: torch.autograd.grad(
        runner.step(runner.share(words().inputs)), [*runner.parameters()]
    ),
)
"""What would be of this process alone, or was done."""


def words():
    torch.manual_seed(0)
    inputs = (torch.randint(0, 16, (8,)), torch.randint(0, 16, (8,)))
    return Workload("words", Words(), inputs, functional.cross_entropy)


def trained(plan, steps):
    """What every process of a plan says after some steps: loss, output, state, refusal."""

    def work(process):
        workload = words()
        early = torch.optim.SGD(workload.model.parameters())
        runner = JointPlan(plan.file).apply(
            workload.model, workload.inputs, loss=workload.loss
        )
        optimizer = torch.optim.AdamW(runner.parameters(), lr=0.1)
        share = runner.share(workload.inputs)
        for _ in range(steps):
            trained_on = runner.step(share)
            optimizer.step()
        with pytest.raises(InputError, match=r"leave loss\.backward"):
            trained_on.backward()
        with (
            pytest.raises(InputError, match="autocast around it"),
            torch.autocast("cpu"),
        ):
            runner.step(share)
        loss = runner.evaluate(share)
        assert all(module.training for module in workload.model.modules())
        with runner.whole_weights(), torch.no_grad():
            output = workload.model.eval()(workload.inputs[0])
        workload.model.train()
        for use in USES:
            with pytest.raises(
                InputError, match=r"evaluate it by runner\.evaluate\(batch\)"
            ):
                use(workload.model, workload.inputs[0])
        for move in (
            workload.model.double,
            lambda: nn.Sequential(workload.model).to("cpu"),
        ):
            with pytest.raises(
                InputError, match="move it, or change its type, before apply"
            ):
                move()
        with pytest.raises(InputError, match="has parts of its weights already"):
            JointPlan(plan.file).apply(
                workload.model, workload.inputs, loss=workload.loss
            )
        state = {name: x.tolist() for name, x in runner.state_dict().items()}
        with pytest.raises(InputError, match=r"make it of runner\.parameters"):
            early.step()
        dims = {
            name: parameter.dim()
            for name, parameter in words().model.named_parameters()
        }
        assert all(p.dim() == dims[name] for name, p in runner.named_parameters())
        for use in NUMBERS:
            with pytest.raises(InputError, match=r"take |runner\.step|clip_grad_norm_"):
                use(workload.model, runner)
        again = torch.optim.AdamW(runner.parameters(), lr=0.1)
        moments = runner.optimizer_state_dict(optimizer)
        assert moments.keys() == runner.optimizer_state_dict(again).keys()
        runner.load_optimizer_state_dict(
            torch.optim.AdamW(runner.parameters()), moments
        )
        runner.step(share)  # parts are in their places again
        return loss.item(), output.tolist(), state, sorted(moments)

    names = [name for stage in plan.file.stages for row in stage.rows for name in row]
    return run_group(work, names, timeout=60.0)


@pytest.mark.parametrize(
    "given",
    [
        "dp=2,microbatch_size=2,zero=3",
        "pp=2,tp=2,microbatch_size=4",
        "tp=2,cp=2,microbatch_size=4,zero=3",
    ],
)
def test_a_model_in_parts_is_evaluated_and_saved_as_the_plain_one(given):
    """It takes a few seconds of the processor: several processes train."""
    plan = plan_for(words(), given)
    found = trained(plan, 2)
    state = {}
    for _, _, own, _ in found[::-1]:
        state.update({name: torch.tensor(x) for name, x in own.items()})
    plain = words()
    plain.model.load_state_dict(state, strict=True)
    assert torch.equal(state["head.weight"], state["embed.weight"])
    assert not any("unused" in name for *_, names in found for name in names)
    with torch.no_grad():
        output = plain.model.eval()(plain.inputs[0])
        loss = plain.loss(output, plain.inputs[1])
    for told, whole, _, _ in found:
        assert told == pytest.approx(loss.item(), rel=1e-5)
        torch.testing.assert_close(torch.tensor(whole), output, rtol=1e-5, atol=1e-5)


class Rows(nn.Module):
    """Two products of tokens with a norm before and a skip around them."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(8),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def rows():
    torch.manual_seed(0)
    return Workload(
        "rows",
        Rows(),
        (torch.randn(4, 4, 8), torch.randn(4, 4, 8)),
        functional.mse_loss,
    )


@pytest.mark.parametrize("zero", [0, 2])
def test_the_norm_of_all_gradients_counts_each_once_on_two_axes_of_shards(zero):
    """Eight processes for a few seconds: replicas, tokens and weights are cut."""
    plan = plan_for(rows(), f"dp=2,tp=2,cp=2,microbatch_size=2,zero={zero}", count=8)

    def work(process):
        workload = rows()
        runner = JointPlan(plan.file).apply(
            workload.model, workload.inputs, loss=workload.loss
        )
        runner.step(runner.share(workload.inputs))
        return runner.clip_grad_norm_(0.1).item(), runner.clip_grad_norm_(0.1).item()

    plain = rows()
    plain.loss(plain.model(plain.inputs[0]), plain.inputs[1]).backward()
    norm = nn.utils.get_total_norm([p.grad for p in plain.model.parameters()]).item()
    names = [name for stage in plan.file.stages for row in stage.rows for name in row]
    for before, after in run_group(work, names, timeout=60.0):
        assert before == pytest.approx(norm, rel=1e-5)
        assert after == pytest.approx(0.1, rel=1e-4)
