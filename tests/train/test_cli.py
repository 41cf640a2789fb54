from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import typeshed_client
from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException

from gnnplace.errors import FormatError, GnnplaceError, InputError, MismatchError
from gnnplace.placing.roster import make_placer
from gnnplace.policy import read_card
from gnnplace.policy.gnn.network import GNN_CHECKPOINT, read_gnn
from gnnplace.train import Evolution, Reinforce
from gnnplace.train.cli import main, start_no_python
from gnnplace.train.training_cli import check_checkpoint, find_mistake

torch.set_num_threads(1)
SMOKE = f"--config={Path(__file__).parents[2] / 'trainers' / 'smoke.yaml'}"
SMALL = [
    "--data=ProblemDataModule",
    "--data.ops=[12,24]",
    "--data.held_out_ops=[12,24]",
    "--data.devices=[2,3]",
    "--data.problems=4",
    "--data.validation_problems=2",
    "--data.test_problems=2",
    "--data.batch_size=2",
    "--model.hidden=8",
    "--model.layers=1",
    "--model.decoder_hidden=8",
    "--trainer.accelerator=cpu",
    "--trainer.num_sanity_val_steps=0",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.log_every_n_steps=1",
    "--trainer.logger=CSVLogger",
]


def run(command: str, folder: Path, *more: str, model: str = "Reinforce") -> None:
    places = [
        f"--trainer.logger.save_dir={folder}",
        f"--trainer.default_root_dir={folder}",
    ]
    main([command, f"--model={model}", *SMALL, *places, *more])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The folder of a run of two epochs outside a terminal, with what it printed."""
    folder = tmp_path_factory.mktemp("fitted")
    more = ["--trainer.max_epochs=2", "--trainer.num_sanity_val_steps=-1"]
    with open(folder / "output", "w") as output, contextlib.redirect_stdout(output):
        run("fit", folder, *more, "--trainer.enable_progress_bar=true")
    return folder


def test_fit_logs_the_validation_and_exports_the_policy(fitted):
    with open(next(fitted.rglob("metrics.csv")), newline="") as file:
        ratios = [row["val/ratio"] for row in csv.DictReader(file) if row["val/ratio"]]
    assert len(ratios) == 3  # the first is that of the start weights
    assert all(0.5 < float(ratio) < 5 for ratio in ratios)
    assert read_gnn(fitted / "policy").encoder.layers
    card = read_card(fitted / "policy")
    assert card is not None
    assert card.complete
    assert card.parameters == sum(
        p.numel() for p in read_gnn(fitted / "policy").parameters()
    )
    assert "random:layered" in card.trained.families
    assert card.validated.families == ["random:nas", "random:two-tower"]
    assert 0 < card.hours < 1
    assert not list(fitted.glob(".*"))


def test_the_network_at_the_end_is_saved_beside_the_best(fitted):
    last = read_gnn(fitted / "policy-last").state_dict()
    state = torch.load(next(fitted.rglob("last.ckpt")), weights_only=True)["state_dict"]
    assert all(torch.equal(last[name], state[f"average.{name}"]) for name in last)


def test_every_epoch_is_one_line_outside_a_terminal(fitted):
    with open(next(fitted.rglob("metrics.csv")), newline="") as file:
        figures = [
            float(row["val/ratio"]) for row in csv.DictReader(file) if row["val/ratio"]
        ]
    shown = [f"{figure:.3f}" for figure in figures]
    best = f"{min(figures):.3f}"
    lines = (fitted / "output").read_text().splitlines()
    assert [re.sub(r", [\d.e-]+ s$", "", line) for line in lines[-5:-2]] == [
        f"start: val/ratio {shown[0]}",
        f"epoch 0: val/ratio {shown[1]} (best {min(shown[:2])}, start {shown[0]})",
        f"epoch 1: val/ratio {shown[2]} (best {best}, start {shown[0]})",
    ]
    folder = fitted / "policy"
    assert lines[-2:] == [
        f"wrote {folder} and {folder}-last",
        f"place with it: gnnplace place PROBLEM --placer gnn --checkpoint {folder}",
    ]


def test_a_checkpoint_of_lightning_is_placed_with_and_exported(
    fitted, tmp_path, capsys
):
    path = next(fitted.rglob("last.ckpt"))
    exported = read_gnn(fitted / "policy-last").state_dict()
    for network in (read_gnn(path), make_placer("gnn", checkpoint=str(path)).policy):
        state = network.state_dict()
        assert all(torch.equal(state[name], value) for name, value in exported.items())
    with pytest.raises(
        MismatchError, match=r"last\.ckpt: this is a network of --placer gnn; add"
    ):
        make_placer("best", checkpoint=str(path))
    main(["export", str(path), "-o", str(tmp_path / "net")])
    assert (
        capsys.readouterr().out
        == f"wrote {tmp_path / 'net'}, a network of --placer gnn\n"
    )
    assert (tmp_path / "net" / "model.safetensors").read_bytes() == (
        fitted / "policy-last" / "model.safetensors"
    ).read_bytes()
    assert json.loads((tmp_path / "net" / "config.json").read_text())["placer"] == "gnn"
    card, last = read_card(tmp_path / "net"), read_card(fitted / "policy-last")
    assert card is not None
    assert last is not None
    assert card == read_card(path)
    assert card == last.model_copy(update={"hours": card.hours})
    assert 0 < card.hours <= last.hours


def test_a_checkpoint_without_a_card_exports_none(fitted, tmp_path, capsys):
    """An older checkpoint; the card of an earlier export is not taken for its own."""
    whole = torch.load(next(fitted.rglob("last.ckpt")), weights_only=True)
    del whole["gnnplace"]["card"]
    torch.save(whole, tmp_path / "older.ckpt")
    (tmp_path / "net").mkdir()
    shutil.copy(fitted / "policy" / "training.json", tmp_path / "net")
    main(["export", str(tmp_path / "older.ckpt"), "-o", str(tmp_path / "net")])
    assert "what the network was trained on is not known" in capsys.readouterr().out
    assert read_card(tmp_path / "net") is None


def test_a_checkpoint_that_would_run_code_or_names_no_network_is_one_line(
    fitted, tmp_path
):
    good = torch.load(next(fitted.rglob("last.ckpt")), weights_only=True)
    path = tmp_path / "other.ckpt"
    torch.save(good | {"gnnplace": Path("code")}, path)
    with pytest.raises(FormatError, match=r"other\.ckpt: holds Python objects"):
        read_gnn(path)
    torch.save({"state_dict": good["state_dict"]}, path)
    with pytest.raises(FormatError, match="names no network of a placer"):
        read_gnn(path)
    path.write_text("nothing")
    with pytest.raises(FormatError, match="not a checkpoint"):
        read_gnn(path)
    with pytest.raises(FormatError, match=r"missing\.ckpt: no such file"):
        read_gnn(tmp_path / "missing.ckpt")


@pytest.mark.parametrize("command", ["validate", "test"])
def test_other_commands_log_their_figure_and_export_nothing(tmp_path, command):
    run(command, tmp_path, f"--model.export={tmp_path / 'policy'}")
    with open(next(tmp_path.rglob("metrics.csv")), newline="") as file:
        [row] = csv.DictReader(file)
    assert 0.5 < float(row["val/ratio" if command == "validate" else "test/ratio"]) < 5
    assert not (tmp_path / "policy").exists()


def test_predictions_are_a_table(tmp_path, capsys):
    run("predict", tmp_path)
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith(
        f"wrote {tmp_path / 'predictions.csv'}: 2 problems, predicted step over"
    )
    with open(tmp_path / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["problem"] for row in rows}) == 2
    assert all(float(row["step_time"]) > 0 < float(row["reference"]) for row in rows)


def test_recipes_parse(capsys):
    trainers = Path(__file__).parents[2] / "trainers"
    for recipe in sorted([*trainers.glob("*.yaml"), *trainers.glob("gnn/*.yaml")]):
        with pytest.raises(SystemExit) as done:
            main(["fit", f"--config={recipe}", "--print_config"])
        assert done.value.code == 0
        assert "class_path: gnnplace.train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "fit, validate, test, predict, sweep"),
        (["bogus"], "train bogus"),
        (
            ["fit", SMOKE, "--model.hiden=3"],
            "^--model.hiden: Reinforce has no argument 'hiden'",
        ),
        (["fit", SMOKE, "--model.hidden=0"], "^model.hidden: 0 is below 1"),
        (["fit", SMOKE, "--model.start=/nope"], r"^/nope/config\.json: cannot be read"),
        (
            ["fit", SMOKE, f"--model.start={GNN_CHECKPOINT}"],
            r"^model\.start .*model\.hidden",
        ),
        (
            ["fit", SMOKE, "--model.start=shipped"],
            r"^model\.start shipped: .*model\.hidden",
        ),
        (["fit", SMOKE, "--data.families=[foo]"], "^family 'foo'"),
        (["fit", SMOKE, "--data.problems=0"], "^data: 0 problems"),
        (["fit", SMOKE, "--trainer.devices=many"], "^trainer: .*devices"),
        (["fit", SMOKE, "--ckpt_path=none.ckpt"], "^ckpt_path none.ckpt: no such file"),
        (["fit", SMOKE, "--data.batch_size=0"], "^data.batch_size: 0 is below 1"),
        (["fit", SMOKE, f"--ckpt_path={__file__}"], "^ckpt_path .*not a checkpoint"),
    ],
)
def test_bad_input_is_an_error_that_says_where(tmp_path, given, message):
    place = [f"--trainer.default_root_dir={tmp_path}"] if given[1:] else []
    with pytest.raises((GnnplaceError, ArgumentError), match=message):
        main([*given, *place])


def test_stubs_are_looked_for_where_they_were_without_another_python(monkeypatch):
    found = typeshed_client.get_search_context
    # Put back at the end.
    monkeypatch.setattr(typeshed_client, "get_search_context", found)
    asked = found(allow_py_files=True)
    start_no_python()
    monkeypatch.setattr(subprocess, "check_output", None)
    known = typeshed_client.get_search_context(allow_py_files=True)
    assert set(asked.search_path) <= set(known.search_path)
    assert known._replace(search_path=()) == asked._replace(search_path=())


FIT_HELP = """
import sys
from gnnplace.cli.main import run
try:
    run(["train", "fit", "--help"])
except SystemExit:
    pass
heavy = "torchmetrics.functional scipy.signal transformers torch_geometric optuna cmaes".split()
assert not [name for name in heavy if name in sys.modules]
from torchmetrics import MeanMetric, Metric
assert issubclass(MeanMetric, Metric)
"""


def test_the_parser_imports_no_metrics_until_somebody_asks_for_one():
    done = subprocess.run(
        [sys.executable, "-c", FIT_HELP], stdout=subprocess.PIPE, check=True
    )
    assert b"--trainer.max_epochs" in done.stdout


def test_a_checkpoint_of_another_kind_or_size_is_one_line(fitted, tmp_path):
    good = str(next(fitted.rglob("last.ckpt")))
    whole = torch.load(good, weights_only=True)
    model = Reinforce(hidden=8, layers=1, decoder_hidden=8)
    check_checkpoint(good, model, goes_on=True)
    with pytest.raises(MismatchError, match=r"has shape \[\d+.*trained with$"):
        check_checkpoint(
            good, Reinforce(hidden=16, layers=1, decoder_hidden=8), goes_on=True
        )
    with pytest.raises(MismatchError, match=r"is of another model, it (has|lacks) "):
        check_checkpoint(good, Evolution(), goes_on=False)
    bad = str(tmp_path / "bad.ckpt")
    torch.save({"state_dict": whole["state_dict"]}, bad)
    check_checkpoint(bad, model, goes_on=False)
    with pytest.raises(InputError, match="holds weights alone"):
        check_checkpoint(bad, model, goes_on=True)
    torch.save(whole["state_dict"], bad)
    with pytest.raises(InputError, match="it has no state_dict"):
        check_checkpoint(bad, model, goes_on=True)
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("a.txt", "a")
    with pytest.raises(InputError, match="not a checkpoint"):
        check_checkpoint(bad, model, goes_on=True)


LATE = [
    (
        RuntimeError(
            "Early stopping conditioned on metric `val/rato` which is not available. Pass in or "
            "modify your `EarlyStopping` callback to use any of the following: `a`, `val/ratio`"
        ),
        "monitor val/rato: .*did you mean 'val/ratio'",
    ),
    (
        MisconfigurationException(
            "`ModelCheckpoint(monitor='los')` could not find the monitored key in the returned "
            "metrics: ['train/loss', 'epoch']. HINT: Did you call `log('los', value)` in the "
            "`LightningModule`?"
        ),
        "monitor los: the model logs no such figure; there are epoch, train/loss$",
    ),
    (
        MisconfigurationException(
            "ReduceLROnPlateau conditioned on metric loss which is not available. Available "
            "metrics are: ['val_loss', 'b']. Condition can be set using `monitor` key"
        ),
        "monitor loss: .*did you mean 'val_loss'",
    ),
    (
        ValueError('`.fit(ckpt_path="hpc")` is set but\nno HPC checkpoint was found.'),
        "^ckpt_path: ",
    ),
]


@pytest.mark.parametrize(("error", "message"), LATE)
def test_what_lightning_finds_late_is_one_line(error, message):
    mistake = find_mistake(error)
    assert mistake is not None
    assert re.search(message, str(mistake)), mistake
    assert "\n" not in str(mistake)
    assert find_mistake(RuntimeError("of the user's own code")) is None
