from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.gnn.placer import GnnPlacer
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.train import Evolution, Reinforce
from gnnplace.train.data.random_families import RandomDraws, random_problem
from gnnplace.train.data_module import EpochSampler, ProblemDataModule, ProblemSample

torch.set_num_threads(1)
SIZES = {"hidden": 8, "layers": 1, "decoder_hidden": 8}


def sample(index=1):
    problem = random_problem(
        "inception", index, RandomDraws(ops=(30, 50), devices=(3, 3), microbatches=(1,))
    )
    return ProblemSample(SearchSpace(problem), index)


def test_a_pool_is_met_over_and_over():
    module = ProblemDataModule(problems=4, pool=3, batch_size=2)
    first = [s for batch in module.train_dataloader() for s in batch]
    assert [one.index for one in first] == [0, 1, 2, 0]
    assert first[0] is first[3]


def test_captured_problems_are_drawn_from_datasets_on_presets():
    module = ProblemDataModule(
        captured=1.0,
        datasets=("networks",),
        presets=("nvlink-v100-4",),
        on_presets=0.5,
        groups=(20, 30),
        microbatches=(1,),
    )
    problems = [module.train[i].space.problem for i in range(16)]
    assert {"nvlink-v100-4"} < {problem.cluster.name for problem in problems}
    kept_out = ("nasnet", "moe", "mixtral", "bert", "t5", "gnmt")
    assert not [p.name for p in problems if p.name.startswith(kept_out)]


def test_epochs_bring_new_problems_and_the_same_seed_the_same_ones():
    sampler = EpochSampler(3)
    assert list(sampler) == [0, 1, 2]
    sampler.set_epoch(2)
    assert list(sampler) == [6, 7, 8]
    names = [
        [s.space.problem.name for batch in module.train_dataloader() for s in batch]
        for module in (ProblemDataModule(problems=6), ProblemDataModule(problems=6))
    ]
    assert names[0] == names[1]
    assert len(set(names[0])) == 6


def test_training_validation_and_test_problems_are_apart():
    module = ProblemDataModule(
        validation_problems=4, test_problems=4, problems=14, held_out_ops=(20, 30)
    )
    names = [
        {s.space.problem.name.rsplit("-", 1)[0] for batch in loader for s in batch}
        for loader in (
            module.train_dataloader(),
            module.val_dataloader(),
            module.test_dataloader(),
        )
    ]
    assert not names[0] & names[1]
    assert not (names[0] | names[1]) & names[2]


def test_validation_is_the_policy_over_the_heuristics():
    torch.manual_seed(0)
    module = Evolution()
    one = sample()
    rollouts = Rollouts(one.space, module.policy)
    step_time = RefiningPasses(rollouts).best(rollouts.greedy()).score
    ratio = module._log_ratio(ProblemSample(one.space, 1, reference=2 * step_time))
    assert ratio == pytest.approx(np.log(0.5))


def test_validation_of_the_gnn_is_what_its_placer_gives():
    torch.manual_seed(0)
    module, one = Reinforce(**SIZES), sample()
    step_time = GnnPlacer(module.policy).place(one.space.problem).step_time
    ratio = module._log_ratio(ProblemSample(one.space, 1, reference=2 * step_time))
    assert ratio == pytest.approx(np.log(0.5))


def test_a_process_without_lessons_takes_its_step_with_the_others():
    module = Reinforce(**SIZES)
    module._trainer = SimpleNamespace(world_size=2)
    module.log = lambda *args, **given: None
    module.training_step([], 0).backward()
    assert all(torch.count_nonzero(p.grad) == 0 for p in module.policy.parameters())
    module._trainer = SimpleNamespace(world_size=1)
    assert module.training_step([], 0) is None


def test_the_quality_leaves_out_problems_without_a_reference():
    module = Reinforce(**SIZES)
    reduce = lambda tensor, reduce_op: 2 * tensor  # noqa: E731
    module._trainer = SimpleNamespace(strategy=SimpleNamespace(reduce=reduce))
    module.ratios = [np.log(0.5), np.nan, np.log(2.0), np.log(0.5)]
    ratio, better = module.quality()
    assert ratio == pytest.approx(0.5 ** (1 / 3))
    assert better == pytest.approx(2 / 3)
    module.ratios = [np.nan]
    assert np.isnan(module.quality()[0])
