"""A file to resume training from: safetensors, with steps and hyper-parameters in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gnnplace.errors import FormatError
from gnnplace.files import write_whole

FORMAT = "gnnplace-training"
VERSION = "1"


def write_training(
    path: str | Path, tensors: Mapping[str, torch.Tensor], steps: int, groups: list[dict[str, Any]]
) -> None:
    """Writes parameters, buffers and optimizer state, atomically.

    Args:
        path: The path of the file.
        tensors: By value name.
        steps: Trained so far.
        groups: Hyper-parameters of every group of parameters.

    Raises:
        InputError: the file cannot be written.
    """
    about = {"format": FORMAT, "version": VERSION}
    about |= {"steps": str(steps), "groups": json.dumps(groups)}
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, about)
    write_whole(path, lambda file: file.write(data))


def read_training(
    path: str | Path,
) -> tuple[dict[str, torch.Tensor], int, list[dict[str, Any]]]:
    """What `write_training` was given.

    Raises:
        FormatError: no such file, or not one of these.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if (about.get("format"), about.get("version")) != (FORMAT, VERSION):
                raise FormatError(f"{path}: not a {FORMAT} file of version {VERSION}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, int(about["steps"]), json.loads(about["groups"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
