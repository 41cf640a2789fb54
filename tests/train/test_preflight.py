"""The usual mistakes of a recipe, each refused in one line before anything is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.train.preflight import check_recipe, folder_error, list_logged_metrics
from gnnplace.train.signatures import ClassSource, Missing, find_class, find_constructor

TRAINERS = Path(__file__).parents[2] / "trainers"
SMOKE = f"--config={TRAINERS / 'smoke.yaml'}"
FIT = ("fit", SMOKE)
STOPPING = "--trainer.callbacks+=EarlyStopping"

MISTAKES = [
    (
        ["--model.hiden=3"],
        "Reinforce has no argument 'hiden'; did you mean 'hidden'",
    ),
    (["--model=Evolution", "--model.hidden=3"], "Evolution has no argument 'hidden'"),
    (
        ["--trainer.max_epoch=3"],
        "Trainer has no argument 'max_epoch'; did you mean 'max_epochs'",
    ),
    (["--trainr.max_epochs=3"], "--trainr: unknown key; did you mean 'trainer'"),
    (["--trials=3"], "--trials: is of `train sweep`"),
    (
        [STOPPING, "--trainer.callbacks.patiens=3"],
        "no argument 'patiens'; did you mean 'patience'",
    ),
    (
        ["--model=Reinforc"],
        "--model: there is no class 'Reinforc'; did you mean 'Reinforce'",
    ),
    (
        ["--model.class_path=gnnplace.train.Reinfoce"],
        "no class 'Reinfoce'.*mean 'Reinforce'",
    ),
    (
        ["--model=nowhere.Model"],
        "--model: class 'nowhere.Model': no module 'nowhere' is here",
    ),
    (["--data=ProblemData"], "--data: there is no class 'ProblemData'"),
    (
        ["--trainer.callbacks=EarlyStoping"],
        "no class 'EarlyStoping'; did you mean 'EarlyStopping'",
    ),
    (["--trainer.max_epochs=ten"], "--trainer.max_epochs: ten: must be a whole number"),
    (["--model.hidden=16.5"], "--model.hidden: 16.5: must be a whole number"),
    (
        ["--model.init_args.hidden=[1]"],
        "--model.init_args.hidden: .1.: must be a whole number",
    ),
    (["--model.learning_rate", "abc"], "--model.learning_rate: abc: must be a number"),
    (["--model.learning_rate=.nan"], "--model.learning_rate: .nan: must be a number"),
    (["--trainer.enable_progress_bar=maybe"], "maybe: must be true or false"),
    (["--threads=x"], "--threads: x: must be a whole number"),
    (["--data.ops=20,60"], "--data.ops: 20,60: must be a list, in brackets: .20,60."),
    (["--data.ops", "20", "60"], "60: is no option; .* a list is written in brackets"),
    (["--data.ops=[20]"], "must be a list of 2 whole numbers"),
    (["--data.families=mlp"], "must be a list, in brackets: .mlp."),
    (["--data.ops={a: 1}"], "must be a list"),
    (
        ["--trainer.default_root_dir=/proc/no"],
        "trainer.default_root_dir /proc/no: cannot be",
    ),
    (
        ["--model.export=/proc/no/policy"],
        "--model.export /proc/no/policy: cannot be made",
    ),
    (
        [STOPPING, "--trainer.callbacks.monitor=val/rato"],
        "'val/rato'; did you mean 'val/ratio'",
    ),
    (
        ["--trainer.logger=WandbLogger"],
        "WandbLogger needs the package wandb.*pip install wandb",
    ),
    (["--trainer.logger=lightning.pytorch.loggers.MLFlowLogger"], "pip install mlflow"),
    (["--ckpt_path", "best"], "ckpt_path best: a new process knows no best checkpoint"),
    (["--ckpt_path", "no.ckpt"], "ckpt_path no.ckpt: no such file"),
    (["--data.batch_size", "0"], "data.batch_size: 0 is below 1"),
    (
        ["--trainer.precision", "16-mixed"],
        "--trainer.precision: 16-mixed: Reinforce is trained in",
    ),
    (
        ["--trainer.callbacks=EarlyStopping"],
        "EarlyStopping needs monitor: add --trainer.callbacks",
    ),
    (["--data=OneProblem"], "--data: OneProblem needs problem: add --data.problem"),
    (
        ["--model=torch.nn.Linear", "--model.in_features=3"],
        "--model: Linear is no LightningModule",
    ),
    (["--optimizer=Adm"], "--optimizer: there is no class 'Adm'; did you mean 'Adam'"),
    (
        ["--optimizer=Adam", "--optimizer.lrr=0.1"],
        "Adam has no argument 'lrr'; did you mean 'lr'",
    ),
    (["--trainer.logger=[WandbLogger]"], "pip install wandb"),
    (["--config", "no.yaml"], "no.yaml: cannot be read"),
]
FINE = [
    ["--model=Evolution", "--model.population=4", "--trainer.precision=16-mixed"],
    ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=logs"],
    ["--trainer.logger=false"],
    [STOPPING, "--trainer.callbacks.monitor=val/ratio"],
    [
        "--trainer.callbacks+={class_path: ModelCheckpoint, init_args: {monitor: val/ratio}}"
    ],
    [
        "--trainer.callbacks=[]",
        "--trainer.plugins=SLURMEnvironment",
        "--trainer.profiler=simple",
    ],
    ["--model.learning_rate", "1e-4", "--trainer.limit_val_batches=0.5"],
    ["--data=OneProblem", "--data.problem=x.json"],
    ["--trainer.max_time=00:01:00:00", "--trainer.check_val_every_n_epoch=null"],
    [
        "--model=MeasuredTuning",
        "--model.objective.class_path=gnnplace.train.workbench.Workbench",
    ],
    [
        "--optimizer=SGD",
        "--optimizer.lr=0.1",
        "--lr_scheduler=StepLR",
        "--lr_scheduler.step_size=2",
    ],
    [
        "--optimizer=Adam",
        "--optimizer.lr=0.1",
        "--seed_everything=true",
        "--ckpt_path=last",
    ],
    ["--model.encoder=torch.nn.Identity", "--data.pool=null", "--trainer.devices=2"],
    ["--model.hiden=3", "--help"],
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_left(
    tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        check_recipe([*FIT, *options])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", FINE)
def test_what_lightning_takes_is_let_through(
    tmp_path: Path, options: list[str]
) -> None:
    check_recipe([*FIT, *options])
    assert not list(tmp_path.iterdir())


def test_the_recipes_of_the_package_are_let_through() -> None:
    recipes = [
        *TRAINERS.glob("*.yaml"),
        *TRAINERS.glob("gnn/*.yaml"),
        *TRAINERS.glob("orders/*.yaml"),
    ]
    for recipe in recipes:
        check_recipe(["fit", f"--config={recipe}"])
    check_recipe(
        ["sweep", str(TRAINERS / "smoke.yaml"), "--trials=2", "--set=model.hidden=8|16"]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {class_path: Reinforce, init_arg: {}}",
            "a.yaml: model.init_arg: unknown key",
        ),
        (
            "model: {init_args: {samples: many}}",
            "a.yaml: model.init_args.samples: many: must be",
        ),
        (
            "data: {init_args: {ops: 20}}",
            "a.yaml: data.init_args.ops: 20: .*in brackets: .20.",
        ),
        (
            "trainer: {max_steps: 3}\ntrainer: {devices: 1}",
            "lines 1 and 2: key 'trainer'",
        ),
        ("- 3", "a.yaml: must be keys and values"),
        ("trainer: [", "a.yaml: line . column .*: not YAML"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises((InputError, FormatError), match=message):
        check_recipe([*FIT, "--config", "a.yaml"])


def test_a_class_beside_the_recipe_is_read_and_left_to_lightning(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "from gnnplace.train import Reinforce\n"
        "class Model(Reinforce):\n"
        "    def __init__(self, width: int = 3, **others):\n"
        "        super().__init__(**others)\n"
        "class Hidden(unknown()):\n"
        "    pass\n"
        "Made = type('Made', (), {})\n"
    )
    check_recipe([*FIT, "--model=mine.Model", "--model.width=4", "--model.hidden=8"])
    check_recipe([*FIT, "--model=mine.Hidden", "--model.anything=4"])
    check_recipe([*FIT, "--model=mine.Made", "--model.anything=4"])
    with pytest.raises(
        InputError, match="Model has no argument 'widht'; did you mean 'width'"
    ):
        check_recipe([*FIT, "--model=mine.Model", "--model.widht=4"])
    with pytest.raises(
        InputError, match="no class 'Modle' in module 'mine'; did you mean 'Model'"
    ):
        check_recipe([*FIT, "--model=mine.Modle"])


def test_a_folder_that_can_be_made_is_not_left(tmp_path: Path) -> None:
    assert not folder_error(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert folder_error(tmp_path / "file") == "is a file"
    assert folder_error(tmp_path, probe=lambda _: False) == "cannot be written to"


def test_metrics_and_arguments_are_those_of_the_class() -> None:
    model = find_class("gnnplace.train.Reinforce")
    assert isinstance(model, ClassSource)
    assert list_logged_metrics(model) >= {"val/ratio", "train/loss", "train/spread"}
    assert "learning_rate" in find_constructor(model).parameters
    assert isinstance(find_class("gnnplace.train.NoSuch"), Missing)
    assert find_class("numpy.ndarray") is None or isinstance(
        find_class("numpy.ndarray"), Missing
    )


LIGHT = """
import sys
import gnnplace.train.preflight
heavy = "torch lightning numba jsonargparse transformers".split()
assert not [name for name in heavy if name in sys.modules]
"""


def test_neither_torch_nor_lightning_is_imported_to_check() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
