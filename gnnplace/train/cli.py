"""``gnnplace train fit|validate|test|predict``: Lightning's command line, as its users know it."""

from __future__ import annotations

import os
import sys
import warnings

# The command line needs the classes imported to find them by their short names.
from lightning import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from gnnplace.train import CostToGo as CostToGo
from gnnplace.train import Imitation as Imitation
from gnnplace.train import ProblemDataModule as ProblemDataModule
from gnnplace.train.policy_module import PolicyModule


class TrainingCLI(LightningCLI):
    """Lightning's command line with one thread for torch: small graphs gain nothing from more."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the number of torch threads."""
        parser.add_argument("--threads", type=int, default=1, help="threads of torch")

    def before_instantiate_classes(self) -> None:
        """Sets the number of torch threads."""
        import torch

        torch.set_num_threads(self.config[self.config.subcommand].threads)


def main(args: list[str] | None = None) -> None:
    """Runs the training command line; ``args`` without the program's name, None for ``sys.argv``.

    ``--model`` is the training algorithm (``Imitation`` or ``CostToGo``), ``--data`` the problems
    (``ProblemDataModule``); ``--config`` a recipe of ``trainers/``.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*LeafSpec.*")
    if args is not None:
        # Lightning warns where it is handed arguments while the process has others.
        sys.argv = ["gnnplace train", *args]
    TrainingCLI(
        PolicyModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        seed_everything_default=0,
        # The caller turns an ArgumentError into one line.
        parser_kwargs={"exit_on_error": False},
    )
