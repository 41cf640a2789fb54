"""Model and optimizer tied to workers whose tensors are elsewhere, as on GPUs: a stand-in."""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.run.training.attachment import Attachment, Redirection
from gnnplace.run.training.torch_optimizers import capture_method
from gnnplace.tracing.models import capture


class Far:
    """A placed step whose numbers are on a device: `there`; `tensors` are the host's."""

    def __init__(self, model, optimizer):
        self.method = capture_method(optimizer, model)
        self.program = capture(model, torch.ones(2, 3), optimizer=self.method)
        self.tensors = {name: t.clone() for name, t in self.program.initial.items()}
        self.there = {name: t.clone() for name, t in self.tensors.items()}
        self.running = True

    def train(self):
        for name, tensor in self.there.items():
            if name.startswith(("parameter", "optimizer")):
                tensor += 1

    def publish(self):
        for name, tensor in self.there.items():
            self.tensors[name].copy_(tensor)

    def take(self):
        for name, tensor in self.tensors.items():
            self.there[name].copy_(tensor)

    def states(self):
        names = [name for name in self.tensors if name.startswith("optimizer.")]
        return {
            source: {
                name.rpartition(":")[2]: self.tensors[name]
                for name in names
                if name.startswith(f"optimizer.{source}:")
            }
            for source in ("weight", "bias")
        }


def attached():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    far = Far(model, optimizer)
    return model, optimizer, far, Attachment(model, optimizer, far.method, far)


def test_what_is_read_is_brought_up_to_date_first():
    model, optimizer, far, attachment = attached()
    before = model.weight.detach().clone()
    for read in (
        lambda: model(torch.ones(1, 3)),
        model.state_dict,
        optimizer.state_dict,
        attachment.close,
    ):
        far.train()
        attachment.stale = True
        read()
        before += 1
        assert torch.equal(model.weight, before)
    assert float(optimizer.state[model.weight]["step"]) == 4
    far.train()
    attachment.stale = True
    assert torch.equal(model.state_dict()["weight"], before)


def test_what_is_loaded_goes_to_the_workers_and_keeps_what_they_did_since():
    model, optimizer, far, attachment = attached()
    far.train()
    attachment.stale = True
    kept = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    state = {key: torch.full_like(x, 5.0) for key, x in model.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(far.there["parameter.weight"], state["weight"])
    assert torch.equal(far.there["optimizer.weight:mean"], kept)
    loaded = optimizer.state_dict()
    loaded["state"][0]["exp_avg"] = torch.full((2, 3), 7.0)
    optimizer.load_state_dict(loaded)
    assert torch.equal(far.there["optimizer.weight:mean"], torch.full((2, 3), 7.0))
    assert torch.equal(far.there["parameter.weight"], state["weight"])
    attachment.close()


class Calls:
    count = 0

    def update(self):
        self.count += 1


def test_an_optimizer_gets_its_step_back():
    optimizer, calls = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), Calls()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    own = vars(optimizer)["step"]
    redirection = Redirection(optimizer, calls.update)
    assert optimizer.step(lambda: 3.0) == 3.0
    redirection.undo()
    optimizer.step()
    assert calls.count == 1
    assert vars(optimizer)["step"] is own
