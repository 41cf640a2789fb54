"""What a step reports goes by the names of the model; micro-batches are averaged."""

from __future__ import annotations

import torch

from gnnplace.execution.saving import SavedValues, made_values, state_values
from gnnplace.tracing.microbatching import microbatched
from tests.execution.programs import two_towers


def test_values_go_by_the_models_names():
    program = two_towers()
    names = [*made_values(program), *state_values(program)]
    assert len(names) == len(set(names)) == 9
    saved = SavedValues(program, names)
    saved.save("loss", torch.tensor(2.5))
    saved.save("gw0.1", torch.full((8, 8), 3.0).t())
    saved.save("parameter.w1.1", torch.full((8, 8), 4.0))
    saved.save("nobody asked", torch.zeros(1))
    values = saved.values()
    assert values.loss == 2.5
    assert values.gradients["w0.1"].unique().tolist() == [3.0]
    assert values.parameters["w1.1"].unique().tolist() == [4.0]
    assert values.buffers == values.optimizer == values.outputs == {}


def test_micro_batches_are_averaged():
    program = microbatched(two_towers(), 2)
    saved = SavedValues(program, [*made_values(program), *state_values(program)])
    for k, value in enumerate((1.0, 5.0)):
        saved.save(f"loss#{k}", torch.tensor(value))
        saved.save(f"gw0.0#{k}", torch.full((8, 8), value))
    assert saved.values().loss == 3.0
    assert saved.values().gradients["w0.0"].unique().tolist() == [3.0]


def test_nothing_is_kept_for_those_who_did_not_ask():
    program = two_towers()
    assert "loss" in made_values(program)
    assert all(program.inputs[name].kind == "parameter" for name in state_values(program))
