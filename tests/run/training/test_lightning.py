"""Lightning's Trainer with placed workers: what it writes is what it writes on one device."""

from __future__ import annotations

import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gnnplace.errors import (
    CaptureError,
    ChangedWarning,
    GnnplaceError,
    InputError,
    MismatchError,
)
from gnnplace.lightning import PlacedStrategy
from tests.leftovers import nothing_left

LOSS = nn.functional.cross_entropy


@pytest.fixture(autouse=True, scope="module")
def clean():
    with nothing_left():
        yield


class Net(pl.LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.left, self.right = nn.Linear(8, 16), nn.Linear(8, 16)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(
            self.dropout(torch.relu(self.left(x)) + torch.tanh(self.right(x)))
        )

    def training_step(self, batch, batch_idx):
        loss = LOSS(self(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"by_epoch": loss}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", LOSS(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def data(size=40):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(size, 8, generator=generator), torch.arange(size) % 3
    return DataLoader(TensorDataset(x, y), batch_size=8)


def made(kind=Net, *args):
    torch.manual_seed(0)
    return kind(*args)


def placed(**options):
    options = {
        "cluster": "cpu:2",
        "placer": "round-robin",
        "budget": 0,
        "timeout": 30.0,
    } | options
    return PlacedStrategy(**options)


def trainer(folder: Path, strategy="auto", callbacks=(), **options):
    options = {
        "max_epochs": 3,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
    } | options
    return pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        logger=CSVLogger(folder, name="", version=""),
        callbacks=list(callbacks),
        enable_model_summary=False,
        **options,
    )


def callbacks(folder):
    checkpoint = ModelCheckpoint(folder, "best", monitor="val_loss", save_last=True)
    return [checkpoint, EarlyStopping("val_loss", patience=1)]


def test_metrics_checkpoints_and_callbacks_are_those_of_one_device(tmp_path):
    """With clipping, accumulation over a last odd batch, a schedule, validation, progress bar."""
    options = {
        "gradient_clip_val": 0.3,
        "accumulate_grad_batches": 2,
        "enable_progress_bar": True,
    }
    kept = {}
    for name, strategy in (("plain", "auto"), ("placed", placed())):
        folder, module = tmp_path / name, made()
        run = trainer(folder, strategy, callbacks(folder), **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*lr_scheduler.*")
            run.fit(module, data(), data())
        kept[name] = (folder / "metrics.csv").read_text(), module, run
    (table, mine, first), (same, theirs, second) = kept.values()
    assert table == same
    assert "train_loss" in table
    assert "by_epoch" in table
    assert all(
        map(torch.equal, mine.state_dict().values(), theirs.state_dict().values())
    )
    assert first.current_epoch == second.current_epoch
    for name in ("best.ckpt", "last.ckpt"):
        files = [
            torch.load(tmp_path / kind / name, weights_only=False) for kind in kept
        ]
        states = [file["optimizer_states"][0]["state"] for file in files]
        for number, state in states[0].items():
            assert all(
                torch.equal(states[1][number][key], x) for key, x in state.items()
            )
        assert all(map(torch.equal, *(file["state_dict"].values() for file in files)))


def test_resumed_from_a_checkpoint_it_goes_on_to_the_last_bit(tmp_path):
    """With dropout, on the placement of a file, and on another one."""
    file = tmp_path / "placement.json"
    whole = trainer(tmp_path / "whole", placed(output=file), max_epochs=2)
    expected = made(Net, 0.3)
    whole.fit(expected, data())
    half = trainer(tmp_path / "half", PlacedStrategy(file, timeout=30.0), max_epochs=1)
    half.fit(made(Net, 0.3), data())
    half.save_checkpoint(tmp_path / "half.ckpt")
    again, module = (
        trainer(tmp_path / "again", placed(placer="single"), max_epochs=2),
        made(Net, 0.3),
    )
    again.fit(module, data(), ckpt_path=tmp_path / "half.ckpt")
    assert all(
        map(torch.equal, module.state_dict().values(), expected.state_dict().values())
    )


class LogsMore(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("accuracy", (loss < 1).float())
        return {"loss": loss, "sum": loss + 1}


def test_what_workers_do_not_compute_is_not_logged_and_told(tmp_path):
    run = trainer(tmp_path, placed(), max_steps=2, max_epochs=1)
    with pytest.warns(ChangedWarning, match="which the workers do not compute") as told:
        run.fit(made(LogsMore), data())
    lost = [str(w.message).split(",")[0] for w in told if w.category is ChangedWarning]
    assert lost == ["training_step logs 'accuracy'", "training_step returns 'sum'"]
    head = (tmp_path / "metrics.csv").read_text().splitlines()[0]
    assert "train_loss" in head
    assert "accuracy" not in head


class ByHand(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class OtherName(Net):
    def training_step(self, batch, i):
        return super().training_step(batch, i)


class Unnumbered(Net):
    def training_step(self, batch):
        return super().training_step(batch, 0)


@pytest.mark.parametrize("kind", [OtherName, Unnumbered])
def test_arguments_of_training_step_may_have_any_names(kind, tmp_path):
    """Two short fits of Lightning's Trainer, with a capture: 1.5 s."""
    plain, mine = made(kind), made(kind)
    trainer(tmp_path / "a", max_epochs=1).fit(plain, data(16))
    trainer(tmp_path / "b", placed(), max_epochs=1).fit(mine, data(16))
    for name, tensor in plain.state_dict().items():
        assert torch.allclose(tensor, mine.state_dict()[name], atol=1e-6)


class Fades(Net):
    """A number of the module's own, which a hook changes."""

    weight = 1.0

    def on_train_epoch_start(self):
        self.weight = 0.5**self.trainer.current_epoch

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.weight


class Counts(Net):
    def __init__(self):
        super().__init__()
        self.count = 0

    def training_step(self, batch, batch_idx):
        self.count += 1
        return super().training_step(batch, batch_idx) / self.count


class Collects(Net):
    def __init__(self):
        super().__init__()
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss


def test_what_the_module_itself_has_is_watched(tmp_path):
    """Three short fits: an attribute that a hook changes, one that the step changes, a list."""
    with pytest.raises(MismatchError, match=r"its weight was 1\.0, now it is 0\.5"):
        trainer(tmp_path, placed()).fit(Fades(), data(16))
    with pytest.raises(CaptureError, match="the forward pass sets 'count'"):
        trainer(tmp_path, placed()).fit(Counts(), data(16))
    module = Collects()
    with pytest.warns(ChangedWarning, match="training_step changes 'losses'"):
        trainer(tmp_path, placed(), max_epochs=1).fit(module, data(16))
    assert module.losses == []


class NoOptimizer(Net):
    def configure_optimizers(self):
        return None


class ReadsTheNumber(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + batch_idx % 2)


class ReadsTheEpoch(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * 0.5**self.current_epoch


class NoLoss(Net):
    def training_step(self, batch, batch_idx):
        return None


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (ByHand, {}, "optimizes by hand"),
        (NoOptimizer, {}, "'left.weight' is in none of its groups"),
        (ReadsTheNumber, {}, "reads batch_idx"),
        (ReadsTheEpoch, {}, "reads trainer"),
        (NoLoss, {}, "returns no loss"),
        (Net, {"precision": "bf16-mixed"}, "precision='bf16-mixed'"),
    ],
)
def test_what_a_placed_step_cannot_do_is_refused_in_one_line(
    kind, options, why, tmp_path
):
    with pytest.raises(GnnplaceError, match=why) as told:
        trainer(tmp_path, placed(), **options).fit(made(kind), data())
    assert "\n" not in str(told.value)


def test_a_last_shorter_batch_and_the_placement_of_another_module_are_refused(tmp_path):
    file, shorter = tmp_path / "placement.json", data(12)
    asked = trainer(tmp_path, placed(output=file))
    with pytest.raises(InputError, match="the last batch has 4 examples, the others 8"):
        asked.fit(made(), shorter)
    assert asked.global_step == 0
    assert not file.exists()
    trainer(tmp_path, placed(), max_epochs=1, limit_train_batches=1).fit(
        made(), shorter
    )
    unseen = DataLoader(shorter.dataset, batch_sampler=[[*range(8)], [*range(8, 12)]])
    with pytest.raises(InputError, match="shape"):
        trainer(tmp_path, placed(output=file)).fit(made(), unseen)
    other = made()
    other.head = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 3))
    with pytest.raises(MismatchError, match="fingerprint"):
        trainer(tmp_path, PlacedStrategy(file)).fit(other, data())


def test_a_batch_of_another_kind_is_refused():
    from gnnplace.run.training.lightning import Logged, RecordedStep

    batch = {torch.ones(1)}
    with pytest.raises(
        InputError, match="of type set, which a recorded step cannot take"
    ):
        RecordedStep(made(), batch, Logged()).inputs(batch)
