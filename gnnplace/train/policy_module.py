"""``PolicyModule``: what all training algorithms share: the policy, its optimizer, its validation.

Algorithms that learn decisions of a decode share ``decisions.DecisionModule`` too.

Validation places held-out problems as ``LearnedPlacer`` does with budget 0. ``val/ratio`` is the
geometric mean of its step time over that of the best heuristic construction: the lower the better.
What is validated and exported is a moving average of the parameters, which noisy losses need.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from gnnplace.errors import InputError, MismatchError
from gnnplace.policy.decode.aims import ORDERS
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.model import CHECKPOINT, PlacementPolicy, read_policy
from gnnplace.policy.refine.passes import Passes
from gnnplace.train.data import Sample

SKIP = 10.0  # the weights of the prior are that much larger than those of the network
DECAY = 0.99  # of the moving average, a step
BETTER = -1e-3  # log ratio below which a problem was placed better than by the heuristics


class PolicyModule(LightningModule):
    """A policy in training.

    Args:
        hidden: size of the encoder's states.
        layers: rounds of messages; 0 leaves the graph out.
        decoder_hidden: size of the decoder's layers.
        learning_rate: the learning rate of Adam, at its highest.
        steps: training steps over which the learning rate falls to a tenth.
        orders: traversal orders to decode under.
        start: folder of a policy to start from, or ``shipped`` for the one that comes with the
            package; its sizes must be those given here.
        export: folder that the policy is saved to whenever the validation improves.
        frozen: keeps the encoder as it is, and with it what other stages learned on top of it.

    Raises:
        InputError: a number is too small.
        FormatError: ``start`` is missing or malformed.
        MismatchError: ``start`` has other features or sizes.
    """

    policy: PlacementPolicy
    average: PlacementPolicy
    best: Tensor

    def __init__(
        self,
        hidden: int = 64,
        layers: int = 3,
        decoder_hidden: int = 32,
        learning_rate: float = 1e-3,
        steps: int = 3000,
        orders: tuple[str, ...] = ORDERS,
        start: str | None = None,
        export: str | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        check_least(hidden=(hidden, 1), layers=(layers, 0), decoder_hidden=(decoder_hidden, 1))
        check_least(learning_rate=(learning_rate, 0.0), steps=(steps, 1))
        self.policy = PlacementPolicy(hidden, layers, decoder_hidden)
        if start is not None:
            begin_with(self.policy, start)
        self.policy.encoder.requires_grad_(not frozen)
        self.average = copy.deepcopy(self.policy).requires_grad_(False)
        self.learning_rate, self.steps, self.orders = learning_rate, steps, orders
        self.export = export
        self.register_buffer("best", torch.tensor(float("inf")))
        self.ratios: list[float] = []

    def configure_optimizers(self) -> Any:
        """Adam with a cosine schedule down to a tenth."""
        skip = self.policy.decoder.skip
        others = [p for p in self.policy.parameters() if p is not skip]
        groups = [
            {"params": others, "lr": self.learning_rate},
            {"params": [skip], "lr": SKIP * self.learning_rate},
        ]
        optimizer = torch.optim.Adam(groups)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _share(self, step: int) -> float:
        """Share of the highest learning rate at ``step``."""
        return 0.1 + 0.45 * (1.0 + float(np.cos(np.pi * min(1.0, step / self.steps))))

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """A step, after which the average moves a little towards the policy.

        Here and not when the batch ends: checkpoints are written before that.
        """
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.policy.parameters(), strict=True):
                mean.lerp_(now, 1.0 - DECAY)

    def rollouts(self, sample: Sample) -> Rollouts:
        """The current policy on a problem."""
        return Rollouts(sample.space, self.policy, self.orders)

    def rng(self, sample: Sample) -> np.random.Generator:
        """Randomness of one problem, the same whenever it is met."""
        return np.random.default_rng([17, sample.index])

    @abstractmethod
    def batch_loss(self, batch: list[Sample]) -> Tensor | None:
        """The loss of a batch of problems; None where there is nothing to learn."""

    def training_step(self, batch: list[Sample], batch_index: int) -> Tensor | None:
        """The loss of a batch; None where there is nothing to learn and nobody waits for it."""
        loss = self.batch_loss(batch)
        if self.trainer.world_size > 1:
            loss = self._no_loss() + (0.0 if loss is None else loss)
        if loss is not None:
            self.log("train/loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def _no_loss(self) -> Tensor:
        """Zero, of all parameters: a process without gradients would keep the others waiting."""
        return torch.stack([p.sum() for p in self.policy.parameters()]).sum() * 0.0

    def on_validation_epoch_start(self) -> None:
        """Forgets the ratios of the last validation."""
        self.ratios = []

    def validation_step(self, batch: list[Sample], batch_index: int) -> None:
        """Places each problem with one decode an aim."""
        self.ratios += [self._log_ratio(sample) for sample in batch]

    def on_validation_epoch_end(self) -> None:
        """Logs the ratio and saves the policy where it is the best so far."""
        ratio, better = self.quality()
        self.log("val/ratio", ratio, prog_bar=True, sync_dist=True)
        self.log("val/better", better, sync_dist=True)
        learning = self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking
        if learning and ratio < float(self.best):
            self.best.fill_(ratio)
            if self.export is not None and self.trainer.is_global_zero:
                save_whole(self.average, Path(self.export))

    def on_test_epoch_start(self) -> None:
        """Forgets the ratios of the validation."""
        self.ratios = []

    def test_step(self, batch: list[Sample], batch_index: int) -> None:
        """As in validation."""
        self.ratios += [self._log_ratio(sample) for sample in batch]

    def on_test_epoch_end(self) -> None:
        """Logs the ratio on the test families."""
        ratio, better = self.quality()
        self.log("test/ratio", ratio, sync_dist=True)
        self.log("test/better", better, sync_dist=True)

    def quality(self) -> tuple[float, float]:
        """Geometric mean of the ratios of all processes, share of those below one.

        Problems without a reference are left out; nan where there are no others.
        """
        ratios = np.array(self.ratios)
        known = ratios[np.isfinite(ratios)]
        sums = [known.sum(), (known < BETTER).sum(), len(known)]
        here = torch.tensor(sums, dtype=torch.float64, device=self.device)
        total, better, count = self.trainer.strategy.reduce(here, reduce_op="sum").tolist()
        return float(np.exp(total / count)) if count else float("nan"), better / max(count, 1.0)

    def predict_step(self, batch: list[Sample], batch_index: int) -> list[dict[str, Any]]:
        """Name, predicted seconds and those of the best heuristic of each problem."""
        return [
            {
                "problem": sample.space.problem.name,
                "step_time": self._place(sample),
                "reference": sample.reference,
            }
            for sample in batch
        ]

    def _log_ratio(self, sample: Sample) -> float:
        return float(np.log(self._place(sample) / sample.reference))

    def _place(self, sample: Sample) -> float:
        """Seconds of the average policy's best first choice, refined."""
        rollouts = Rollouts(sample.space, self.average, self.orders)
        return Passes(rollouts).best(rollouts.greedy()).score


def save_whole(policy: PlacementPolicy, folder: Path) -> None:
    """Saves a policy file by file, so that none is ever half-written; a README.md there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        policy.save_pretrained(temporary)  # type: ignore[operator]
        for path in Path(temporary).iterdir():
            if path.name != "README.md" or not (folder / path.name).exists():
                path.replace(folder / path.name)


def check_least(**given: tuple[float, float]) -> None:
    """Raises InputError where an argument is below its least value; both by the argument's name."""
    for name, (value, least) in given.items():
        if value < least:
            raise InputError(f"model.{name}: {value} is below {least}")


SHIPPED = "shipped"
"""The policy of the package, as a start."""


def begin_with(policy: PlacementPolicy, folder: str) -> None:
    """Gives ``policy`` the parameters of the policy saved in ``folder``, or of the shipped one.

    Raises:
        FormatError: a file is missing or malformed.
        MismatchError: its features or sizes are others.
    """
    try:
        path = CHECKPOINT if folder == SHIPPED else folder
        policy.load_state_dict(read_policy(path).state_dict())
    except RuntimeError:
        raise MismatchError(
            f"model.start {folder}: other sizes than model.hidden, model.layers and "
            f"model.decoder_hidden; give those in its config.json"
        ) from None
