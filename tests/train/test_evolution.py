from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from lightning import Trainer

from gnnplace.errors import InputError
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network import PlacementPolicy
from gnnplace.policy.refine.refining import NUM_REFINING
from gnnplace.train import Evolution, ProblemDataModule
from gnnplace.train.evolution import watch_pass
from tests.train.test_algorithms import sample

torch.set_num_threads(1)
torch.set_num_threads(1)


def find_module_path(**options):
    torch.manual_seed(0)
    return Evolution(population=6, **options)


def find_trainer(folder, **options):
    return Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def data_of(**options):
    sizes = {"ops": (12, 24), "held_out_ops": (12, 24), "problems": 6, "batch_size": 3}
    return ProblemDataModule(**sizes, validation_problems=2, **options)


@pytest.mark.parametrize("part", ["refiner", "decoder"])
def test_only_the_weights_of_its_part_change(tmp_path, part):
    module = find_module_path(part=part)
    before = copy.deepcopy(module.policy.state_dict())
    find_trainer(tmp_path, max_epochs=1).fit(module, data_of())
    changed = {
        k
        for k, v in module.policy.state_dict().items()
        if not torch.equal(v, before[k])
    }
    assert changed == {part}
    average = module.average.state_dict()
    assert all(
        torch.equal(v, average[k]) for k, v in module.policy.state_dict().items()
    )


def test_the_mean_goes_where_the_better_half_is(monkeypatch, tmp_path):
    """On a quadratic bowl in place of problems it finds the bottom."""
    module = find_module_path(step_size=0.5)
    size = len(module.spread)
    bottom = np.linspace(-1.0, 1.0, size)
    start = module.policy.refiner.detach().double().numpy().copy()
    module.spread.fill_(1.0)

    def fitness(samples, candidates):
        return ((candidates - start - bottom) ** 2).sum(axis=1)

    monkeypatch.setattr(module, "_fitness", fitness)
    find_trainer(tmp_path, max_epochs=80, limit_val_batches=0).fit(
        module, data_of(pool=6)
    )
    found = module.policy.refiner.detach().double().numpy() - start
    assert np.abs(found - bottom).max() < 0.1


def test_clipped_gradients_are_refused(tmp_path):
    trainer = find_trainer(tmp_path, max_epochs=1, gradient_clip_val=1.0)
    with pytest.raises(InputError, match="gradient_clip_val"):
        trainer.fit(find_module_path(), data_of())


def test_a_checkpoint_holds_the_search_and_loads_without_unpickling(tmp_path):
    module, trainer = find_module_path(), find_trainer(tmp_path, max_epochs=1)
    trainer.fit(module, data_of())
    path = tmp_path / "kept.ckpt"
    trainer.save_checkpoint(path)
    kept = torch.load(path, weights_only=True)
    again = find_module_path()
    again.on_load_checkpoint(kept)
    assert again.search.generation == module.search.generation > 0
    assert np.array_equal(again.search.mean, module.search.mean)
    drawn = []
    for search in (module.search, again.search):
        search.reseed_rng(5)
        drawn.append(search.ask())
    assert np.array_equal(*drawn)


def test_every_decision_of_a_pass_is_seen_with_its_candidates():
    torch.manual_seed(0)
    rollouts = Rollouts(sample().space, PlacementPolicy().eval())
    for seed in range(4):
        seen = watch_pass(rollouts, np.random.default_rng(seed))
        assert seen is not None
        assert seen.features.shape == (*seen.allowed.shape, NUM_REFINING)
        assert seen.allowed.any(axis=1).all()
        assert np.isfinite(seen.features).all()
