"""Writes a trained network to a folder that ``--checkpoint`` takes: ``gnnplace train export``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from jsonargparse import ArgumentParser

from gnnplace.errors import InputError
from gnnplace.policy import (
    CARD,
    PLACER_KEY,
    GnnPolicy,
    SavedNetwork,
    TrainingCard,
    read_card,
    read_gnn,
    read_lightning_checkpoint,
    read_policy,
    trust_classes,
    write_card,
)


def save_whole(
    network: SavedNetwork, folder: Path, card: TrainingCard | None = None
) -> None:
    """Save a network and its card to a folder. A README.md that is already there is kept.

    Every file is written completely elsewhere and then moved, so that none is ever half-written.

    Args:
        network: The network.
        folder: The folder to write to. It is made if it does not exist.
        card: What the network was trained on; None if that is not known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The temporary folder is on the same file system, so that moving a file is atomic.
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        network.save_pretrained(temporary)
        if card is not None:
            write_card(temporary, card)
        for path in Path(temporary).iterdir():
            if path.name != "README.md" or not (folder / path.name).exists():
                path.replace(folder / path.name)


def export_checkpoint(checkpoint: str | Path, folder: str | Path) -> SavedNetwork:
    """Write the network of a Lightning checkpoint and its card to a folder, and return the network.

    The network is the one that training itself would have exported at that step: the moving
    average, or whatever network the algorithm validates.

    Args:
        checkpoint: A ``.ckpt`` file of ``gnnplace train fit``.
        folder: The folder to write; files of an earlier export are replaced.

    Raises:
        FormatError: If ``checkpoint`` is no such file.
        InputError: If ``folder`` is a file.
        MismatchError: If the network was trained on other features than this package computes.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{folder}: is a file; give a folder to write to")
    config, _ = read_lightning_checkpoint(Path(checkpoint))
    is_gnn = config.get(PLACER_KEY) == GnnPolicy.placer
    network: SavedNetwork = read_gnn(checkpoint) if is_gnn else read_policy(checkpoint)
    card = read_card(checkpoint)
    if card is None:
        # A card there is of an earlier export, and not of this network.
        (target / CARD).unlink(missing_ok=True)
    save_whole(network, target, card)
    return network


def run_export(args: list[str]) -> None:
    """Run ``gnnplace train export``.

    Args:
        args: Arguments after ``gnnplace train export``.

    Raises:
        InputError: If an argument is wrong, or the file is no checkpoint of a placer's network.
    """
    parser = ArgumentParser(
        prog="gnnplace train export",
        description="Write the network of a .ckpt file to a folder that --checkpoint takes.",
        exit_on_error=False,
    )
    parser.add_argument("ckpt", help="A .ckpt file of gnnplace train fit.")
    parser.add_argument("-o", "--output", required=True, help="The folder to write.")
    parser.add_argument(
        "--trust",
        type=int,
        default=0,
        help="1: an encoder or order that the checkpoint names is imported wherever it is.",
    )
    options = parser.parse_args(args)
    with trust_classes(bool(options.trust)):
        network = export_checkpoint(options.ckpt, options.output)
    sys.stdout.write(
        f"wrote {options.output}, a network of --placer {network.placer}\n"
    )
    if read_card(options.output) is None:
        sys.stdout.write(
            f"{options.ckpt} was written before checkpoints had a card: what the network was "
            f"trained on is not known, and no {CARD} was written\n"
        )
