from __future__ import annotations

from pathlib import Path

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.files import write_json
from gnnplace.policy import read_card
from gnnplace.policy.gnn.network import GNN_CHECKPOINT
from gnnplace.problem import compute_digest, problem_to_data, read_problem
from gnnplace.train import OneProblem, ProblemFiles
from gnnplace.train.cli import main
from gnnplace.train.data.random_families import RandomDraws, random_problem
from gnnplace.train.one_problem import FewProblems


def small(seed=1):
    return random_problem(
        "inception", seed, RandomDraws(ops=(12, 20), devices=(2, 2), microbatches=(1,))
    )


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


@pytest.fixture
def family(tmp_path):
    """A folder of four problem files and one with another name."""
    for name in ("a1", "a2", "a3", "a4", "b1"):
        write_json(tmp_path / f"{name}.json", problem_to_data(small(int(name[1]))))
    return tmp_path


def test_a_family_is_read_from_files_by_pattern_and_by_name(family):
    given = [str(family / "a*.json"), str(family / "b1.json")]
    data = ProblemFiles(given, steps=5, batch_size=1)
    data.setup("fit")
    drawn = [sample.space.problem for (sample,) in data.train_dataloader()]
    assert len({id(problem) for problem in drawn}) == 5
    assert {problem.name for problem in drawn} == {small(i).name for i in (1, 2, 3, 4)}
    assert len(list(data.val_dataloader())) == 5


def test_what_is_held_out_is_validated_on_alone(family):
    data = ProblemFiles(
        [str(family / "a*.json")], [str(family / "b1.json")], batch_size=2
    )
    data.setup("fit")
    (validated,) = data.val_dataloader()
    assert [problem_to_data(one.space.problem) for one in validated] == [
        problem_to_data(small(1))
    ]
    assert validated[0].index not in {one.index for one in data.samples}


def test_a_pattern_without_a_file_and_no_problems_are_refused(family):
    with pytest.raises(InputError, match=r"c\*.json.*no such file"):
        ProblemFiles([str(family / "c*.json")]).setup("fit")
    with pytest.raises(InputError, match="problems: none"):
        ProblemFiles([]).setup("fit")


def test_the_network_is_fine_tuned_for_it_from_the_command_line(tmp_path):
    write_json(tmp_path / "problem.json", problem_to_data(small()))
    recipe = Path(__file__).parents[2] / "trainers" / "gnn" / "finetune.yaml"
    given = [f"--data.problem={tmp_path / 'problem.json'}", "--data.steps=2"]
    given += [
        "--trainer.max_epochs=1",
        "--model.samples=4",
        f"--model.export={tmp_path / 'net'}",
    ]
    main(
        ["fit", f"--config={recipe}", *given, f"--trainer.default_root_dir={tmp_path}"]
    )
    assert list(tmp_path.rglob("*.ckpt"))
    assert (tmp_path / "net" / "model.safetensors").exists()
    card, shipped = read_card(tmp_path / "net"), read_card(GNN_CHECKPOINT)
    assert list(card.trained.problems) == [
        compute_digest(read_problem(tmp_path / "problem.json"))
    ]
    assert card.trained.families == shipped.trained.families
    assert card.hours > shipped.hours


def test_the_network_is_trained_on_a_family_from_the_command_line(family):
    recipe = Path(__file__).parents[2] / "trainers" / "gnn" / "family.yaml"
    given = [
        f"--data.problems=[{family}/a*.json]",
        f"--data.held_out=[{family}/b1.json]",
    ]
    given += ["--data.steps=1", "--trainer.max_epochs=1", "--model.samples=4"]
    given += [
        f"--model.export={family / 'net'}",
        f"--trainer.default_root_dir={family}",
    ]
    main(["fit", f"--config={recipe}", *given])
    assert (family / "net-last" / "model.safetensors").exists()
