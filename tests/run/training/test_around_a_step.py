"""What users do around a compiled step: save the model, ask for gradients of inputs, use a Pool."""

import io
import multiprocessing

import pytest
import torch
from torch import nn
from torch.nn import functional

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InputError
from tests.run.programs import cpu_cluster, random_placement
from tests.run.training.small import LOSS, batches, net
from tests.run.training.test_loop import compiled


def test_the_whole_model_is_saved_and_loaded_without_hooks_that_act(problem):
    model = net()
    with compiled(model, problem, "sgd", inputs=batches(1)[0]) as step:
        step(batches(1)[0])
        file = io.BytesIO()
        torch.save(model, file)
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        step(batches(1)[0])
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded.eval()(*batches(1)[0][:1])
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, kept[name])
    loaded.load_state_dict(kept)


def test_gradients_of_inputs_are_refused():
    """They would be missing without a word; who asks for none may give such inputs."""
    model, x = nn.Linear(4, 4), torch.randn(4, 4)
    program = gnnplace.capture(model, (x,))
    problem = profile(program, cpu_cluster(2))
    placement = random_placement(problem, 0)
    with gnnplace.compile(model, placement, None, problem=problem, inputs=(x,)) as step:
        with pytest.raises(InputError, match=r"input \[0\] has requires_grad"):
            step.loss(x.clone().requires_grad_())
        with torch.no_grad():
            step.loss(x.clone().requires_grad_())


def trained_in_a_pool(problem):
    with compiled(net(), problem, "sgd", inputs=batches(1)[0]) as step:
        return float(step(batches(1)[0]))


def test_a_daemonic_process_has_workers(problem):
    """As those of a Pool, or of Celery, are."""
    expected = float(LOSS(net()(batches(1)[0][0]), batches(1)[0][1]))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(trained_in_a_pool, (problem,)) == pytest.approx(expected)


def test_a_model_on_the_meta_device_is_planned_but_not_run():
    def meta():
        with torch.device("meta"):
            return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    inputs = torch.randn(4, 4), torch.randn(4, 4)
    model, loss = meta(), functional.mse_loss
    program = gnnplace.capture(model, inputs, loss=loss)
    assert not program.initial
    assert all(p.is_meta for p in model.parameters())
    words = "pp=1,microbatch_size=4"
    plan = gnnplace.plan(model, "cpu:1", inputs, loss=loss, given=words, budget=0)[0]
    with pytest.raises(InputError, match=r"apply: 0\.weight is on the meta device"):
        plan.apply(model, inputs, loss=loss)
