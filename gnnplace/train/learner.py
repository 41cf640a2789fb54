"""``Learner``: the base of all training algorithms: a network, its moving average, its validation.

Validation places held-out problems as the network's placer does with budget 0. ``val/ratio`` is the
geometric mean of its step time over that of the best heuristic construction; lower is better. If
the sanity check covers all problems (``num_sanity_val_steps: -1``), a run begins with a validation
of the start weights, so that the exported best network is never worse than those. Validation and
export use a moving average of the parameters, because losses are noisy.
``PolicyModule`` is a learner of the policy of ``learned``.
"""

from __future__ import annotations

import copy
import math
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from gnnplace.errors import MismatchError
from gnnplace.policy import (
    DECODED,
    NETWORK_KEY,
    POLICY_CHECKPOINT,
    Exposure,
    PlacementPolicy,
    RefiningPasses,
    Rollouts,
    SavedNetwork,
    TrainingCard,
    read_card,
    read_policy,
)
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.export import save_whole
from gnnplace.train.exposure import Exposing
from gnnplace.train.limits import check_least

SECONDS = "training_seconds"  # A key of a checkpoint
SHIPPED = "shipped"  # the network of the package, as a start
# A key of a checkpoint: ``val/ratio`` of the start weights.
START_RATIO = "start_ratio"
AT_THE_END = "last"  # The suffix of the folder with the network of the last step
# Decay of the moving average a step; less in the first 900, which forget the beginning.
DECAY = 0.99
# The log ratio below which a problem was placed better than by the heuristics.
BETTER = -1e-3


class Learner(LightningModule):
    """A network in training.

    Args:
        network: What learns; saved by ``save_pretrained``.
        learning_rate: The learning rate of Adam, at its highest.
        steps: Training steps over which the learning rate falls to a tenth.
        export: Folder that the network is saved to whenever the validation improves; ``-last`` is
            added to its name for the network at the end.

    Raises:
        InputError: A number is too small.
    """

    best: Tensor
    # The folder of the weights that training begins with, or ``SHIPPED``.
    start: str | None = None
    shipped: Path = POLICY_CHECKPOINT  # folder that ``SHIPPED`` stands for
    # The attribute that checkpoints and ``export`` hold.
    exported_name: ClassVar[str] = "average"

    def __init__(
        self,
        network: SavedNetwork,
        learning_rate: float,
        steps: int,
        export: str | None,
    ) -> None:
        super().__init__()
        check_least(learning_rate=(learning_rate, 0.0), steps=(steps, 1))
        self.policy: Any = network
        self.average: Any = copy.deepcopy(network).requires_grad_(False)
        self.learning_rate = learning_rate
        self.steps = steps
        self.export = export
        self.register_buffer("best", torch.tensor(float("inf")))
        self.ratios: list[float] = []
        self.start_ratio: float | None = None
        self.begun_at = time.monotonic()
        self.earlier_seconds = 0.0

    def on_fit_start(self) -> None:
        """Start the clock of the training card."""
        self.begun_at = time.monotonic()

    @property
    def training_seconds(self) -> float:
        """Return the seconds of this training so far, without that of the weights it began with."""
        return self.earlier_seconds + time.monotonic() - self.begun_at

    def exposures(self) -> tuple[Exposure, Exposure] | None:
        """Return the exposures of training and validation, or None if the data do not say."""
        try:
            data = getattr(self.trainer, "datamodule", None)
        except RuntimeError:  # attached to no trainer
            return None
        if isinstance(data, Exposing):
            return data.exposures()
        return None

    def card(self) -> TrainingCard:
        """Return the card of the network as it is trained so far."""
        exposures = self.exposures()
        trained, validated = exposures or (Exposure(), Exposure())
        card = TrainingCard(
            parameters=sum(p.numel() for p in self.policy.parameters()),
            hours=self.training_seconds / 3600,
            trained=trained,
            validated=validated,
            complete=exposures is not None,
        )
        if self.start is None:
            return card
        earlier = read_card(self.shipped if self.start == SHIPPED else self.start)
        if earlier is None:
            return card.model_copy(update={"complete": False})
        return earlier.continue_card(card)

    def configure_optimizers(self) -> object:
        """Return Adam with a cosine schedule down to a tenth."""
        optimizer = torch.optim.Adam(self.policy.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _share(self, step: int) -> float:
        """Return the share of the highest learning rate at ``step``."""
        return 0.1 + 0.45 * (1.0 + float(np.cos(np.pi * min(1.0, step / self.steps))))

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: object,
        optimizer_closure: object = None,
    ) -> None:
        """Take a step, after which the average moves a little towards the policy.

        Here and not when the batch ends: checkpoints are written before that.
        """
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        share = 1.0 - min(DECAY, (1.0 + self.global_step) / (10.0 + self.global_step))
        with torch.no_grad():
            for mean, current in zip(
                self.average.parameters(), self.policy.parameters(), strict=True
            ):
                mean.lerp_(current, share)
            for mean, current in zip(
                self.average.buffers(), self.policy.buffers(), strict=True
            ):
                if mean.is_floating_point():
                    _ = mean.lerp_(current, share)
                else:
                    _ = mean.copy_(current)

    def rng(self, sample: ProblemSample) -> np.random.Generator:
        """Return the generator of one problem, the same whenever it is met."""
        return np.random.default_rng([17, sample.index])

    @abstractmethod
    def batch_loss(self, batch: list[ProblemSample]) -> Tensor | None:
        """Return the loss of a batch of problems; None where there is nothing to learn."""

    def training_step(
        self, batch: list[ProblemSample], batch_index: int
    ) -> Tensor | None:
        """Return the loss of a batch; None if there is nothing to learn and nobody waits for it."""
        loss = self.batch_loss(batch)
        if self.trainer.world_size > 1:
            # Zero, of all parameters: a process without gradients would keep the others waiting.
            zero = torch.stack([p.sum() for p in self.policy.parameters()]).sum() * 0.0
            loss = zero + (0.0 if loss is None else loss)
        if loss is not None:
            self.log("train/loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Forget the ratios of the last validation."""
        self.ratios = []

    def validation_step(self, batch: list[ProblemSample], batch_index: int) -> None:
        """Place each problem with one decode an aim."""
        self.ratios += [self._log_ratio(sample) for sample in batch]

    def on_validation_epoch_end(self) -> None:
        """Log the ratio and save the policy if it is the best so far."""
        ratio, better = self.quality()
        self.log("val/ratio", ratio, prog_bar=True, sync_dist=True)
        self.log("val/better", better, sync_dist=True)
        counts = self.trainer.state.fn == TrainerFn.FITTING
        if self.trainer.sanity_checking:
            # Of all problems, and of the start weights: not those that a resumed run goes on from.
            is_whole = self.trainer.num_sanity_val_steps == float("inf")
            counts = is_whole and self.start_ratio is None and self.global_step == 0
            if counts:
                self.start_ratio = ratio
                # What is logged in the sanity check is dropped.
                for logger in self.trainer.loggers:
                    logger.log_metrics(
                        {"val/ratio": ratio, "val/better": better}, step=0
                    )
        if counts and ratio < float(self.best):
            self.best.fill_(ratio)
            if self.export is not None and self.trainer.is_global_zero:
                save_whole(self.average, Path(self.export), self.card())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say which parameters are the network that is placed by, its card, and seconds."""
        network: SavedNetwork = getattr(self, self.exported_name)
        checkpoint[NETWORK_KEY] = {
            "config": network.make_saved_config(),
            "prefix": f"{self.exported_name}.",
            "card": self.card().model_dump(mode="json"),
            START_RATIO: self.start_ratio,
        }
        checkpoint[SECONDS] = self.training_seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the figure of the start weights, and the seconds of the interrupted run."""
        self.earlier_seconds = float(checkpoint.get(SECONDS, 0.0))
        self.start_ratio = checkpoint.get(NETWORK_KEY, {}).get(START_RATIO)

    @property
    def exported_folders(self) -> list[str]:
        """Return the exported folders: that of the best network, if there is one, and the last."""
        if self.export is None:
            return []
        if self.has_exported_best:
            best = [self.export]
        else:
            best = []
        return [*best, f"{self.export}-{AT_THE_END}"]

    @property
    def has_exported_best(self) -> bool:
        """Return whether ``export`` has a network of this run."""
        return math.isfinite(float(self.best))

    def on_train_end(self) -> None:
        """Save the average as it is at the end, beside the best one."""
        if self.export is not None and self.trainer.is_global_zero:
            save_whole(self.average, Path(f"{self.export}-{AT_THE_END}"), self.card())

    on_test_epoch_start, test_step = on_validation_epoch_start, validation_step

    def on_test_epoch_end(self) -> None:
        """Log the ratio on the test families."""
        ratio, better = self.quality()
        self.log("test/ratio", ratio, sync_dist=True)
        self.log("test/better", better, sync_dist=True)

    def quality(self) -> tuple[float, float]:
        """Return the geometric mean of the ratios of all processes and the share below one.

        Problems without a reference are left out; nan where there are no others.
        """
        ratios = np.array(self.ratios)
        finite = ratios[np.isfinite(ratios)]
        sums = [finite.sum(), (finite < BETTER).sum(), len(finite)]
        local_sums = torch.tensor(sums, dtype=torch.float64, device=self.device)
        total, better, count = self.trainer.strategy.reduce(
            local_sums, reduce_op="sum"
        ).tolist()
        return float(np.exp(total / count)) if count else float("nan"), better / max(
            count, 1.0
        )

    def predict_step(
        self, batch: list[ProblemSample], batch_index: int
    ) -> list[dict[str, Any]]:
        """Return a row for each problem: name, predicted seconds, and the best heuristic's."""
        return [
            {
                "problem": sample.space.problem.name,
                "step_time": self.place(self.average, sample),
                "reference": sample.reference,
            }
            for sample in batch
        ]

    def _log_ratio(self, sample: ProblemSample) -> float:
        return float(np.log(self.place(self.average, sample) / sample.reference))

    @abstractmethod
    def place(self, network: Any, sample: ProblemSample) -> float:
        """Return the seconds of a network's first choice on a problem."""


def begin_with(
    network: nn.Module,
    read: Callable[[str | Path], nn.Module],
    folder: str,
    shipped: Path,
    sizes: str,
    added: str = "",
) -> None:
    """Give a network the parameters of the one saved in ``folder``, or of the shipped one.

    Args:
        network: A network of the same sizes.
        read: Reads what is in a folder.
        folder: Folder of the saved network, or ``SHIPPED``.
        shipped: The folder of the shipped one.
        sizes: The arguments that say sizes, for the error.
        added: What names of parameters begin with that the saved one may lack.

    Raises:
        FormatError: A file is missing or malformed.
        MismatchError: The saved network has other features or sizes.
    """
    try:
        path = shipped if folder == SHIPPED else folder
        added_parameters = {
            name: p
            for name, p in network.state_dict().items()
            if name.startswith(added)
        }
        network.load_state_dict(
            (added_parameters if added else {}) | read(path).state_dict()
        )
    except RuntimeError:
        raise MismatchError(
            f"model.start {folder}: other sizes than {sizes}; leave these out"
        ) from None


class PolicyModule(Learner):
    """A placement policy in training.

    Args:
        learning_rate: The learning rate of Adam, at its highest.
        steps: Training steps over which the learning rate falls to a tenth.
        orders: Traversal orders to decode under.
        start: Folder of a policy to start from, or ``shipped`` for the one that comes with the
            package.
        export: Folder that the policy is saved to whenever the validation improves.

    Raises:
        InputError: A number is too small.
        FormatError: ``start`` is missing or malformed.
        MismatchError: ``start`` has other features.
    """

    policy: PlacementPolicy
    average: PlacementPolicy

    def __init__(
        self,
        learning_rate: float = 1e-3,
        steps: int = 3000,
        orders: tuple[str, ...] = DECODED,
        start: str | None = None,
        export: str | None = None,
    ) -> None:
        policy = PlacementPolicy()
        if start is not None:
            begin_with(policy, read_policy, start, POLICY_CHECKPOINT, "this package's")
        super().__init__(policy, learning_rate, steps, export)
        self.orders = orders
        self.start = start

    def rollouts(self, sample: ProblemSample) -> Rollouts:
        """Return the current policy on a problem."""
        return Rollouts(sample.space, self.policy, self.orders)

    def place(self, network: PlacementPolicy, sample: ProblemSample) -> float:
        rollouts = Rollouts(sample.space, network, self.orders)
        return RefiningPasses(rollouts).best(rollouts.greedy()).score
