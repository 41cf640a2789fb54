from __future__ import annotations

from pathlib import Path

import pytest

from gnnplace.data.random_families import random_problem
from gnnplace.errors import FormatError, InputError
from gnnplace.files import write_json
from gnnplace.problem import problem_to_data
from gnnplace.train import OneProblem
from gnnplace.train.cli import main
from gnnplace.train.one_problem import FewProblems
from tests.train.test_cli import last_checkpoint


def small(seed=1):
    return random_problem("inception", seed, ops=(12, 20), devices=(2, 2), microbatches=(1,))


def test_problems_come_in_turn_and_are_validated_once_with_a_reference():
    data = FewProblems([small(1), small(2)], steps=2, batch_size=3)
    data.setup("fit")
    batches = [[sample.index for sample in batch] for batch in data.train_dataloader()]
    assert batches == [[0, 1, 0], [1, 0, 1]]
    validated = [sample for batch in data.val_dataloader() for sample in batch]
    assert [sample.index for sample in validated] == [0, 1]
    assert all(sample.reference > 0 for sample in validated)


def test_a_problem_is_read_from_its_file_when_it_is_needed(tmp_path):
    write_json(tmp_path / "problem.json", problem_to_data(small()))
    data = OneProblem(str(tmp_path / "problem.json"), steps=3)
    data.setup("fit")
    assert len(data.train_dataloader()) == 3
    with pytest.raises(FormatError, match="nowhere"):
        OneProblem(str(tmp_path / "nowhere.json")).setup("fit")
    with pytest.raises(InputError, match="steps"):
        OneProblem("problem.json", steps=0)


def test_the_network_is_fine_tuned_for_it_from_the_command_line(tmp_path):
    write_json(tmp_path / "problem.json", problem_to_data(small()))
    recipe = Path(__file__).parents[2] / "trainers" / "gnn" / "finetune.yaml"
    given = [f"--data.problem={tmp_path / 'problem.json'}", "--data.steps=2"]
    given += ["--trainer.max_epochs=1", "--model.samples=4", f"--model.export={tmp_path / 'net'}"]
    main(["fit", f"--config={recipe}", *given, f"--trainer.default_root_dir={tmp_path}"])
    assert last_checkpoint(tmp_path).exists()
    assert (tmp_path / "net" / "model.safetensors").exists()
