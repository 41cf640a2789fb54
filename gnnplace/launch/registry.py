"""The launchers whose files are written and read, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gnnplace.errors import FormatError, InfeasibleError, InputError, suggestion
from gnnplace.files import read_text
from gnnplace.launch import (
    accelerate,
    accelerate_reading,
    deepspeed,
    deepspeed_reading,
    finetuners,
    foundry,
    lightning_cli,
    megatron,
    megatron_bridge,
    megatron_script,
    nanotron,
    nemo,
    neox,
    torchtitan,
)
from gnnplace.launch.launch_plan import BYTES, LaunchPlan
from gnnplace.launch.layer_details import LLAMA, TORCHTITAN_TYPES, YARN
from gnnplace.launch.telling import find_told_launcher
from gnnplace.plans import PlanFile


@dataclass(frozen=True)
class Launcher:
    """A launcher whose files are written and read.

    Attributes:
        write: Returns the text of its file for a plan, lines for the file's head and the GPUs of a
            server. Raises `InfeasibleError` where the file cannot say the plan.
        read: Returns the plan of a text, given its path and values of the environment.
        nearest: Yields what it cannot say of a plan, one thing at a time, with the plan that it
            can.
        script_fields: Fields of a plan that are the script's business. Its file has them as a
            comment.
        command: The command that starts a run by its file, FILE.
        framework: The framework whose times and bytes a run has.
        write_order: Returns the text of a file with the order of actions, which stands beside its
            file as FILE with `.csv`; None if its own file has the order.
        check_degrees: Raises `InfeasibleError` where it lacks a kind of parallelism of a plan, as
            `write` does too.
        scalings: Kinds of rotary scaling that its file says; None: it says nothing of layers.
        own_types: Types of models that it has configurations of, with all that they have.
    """

    write: Callable[[LaunchPlan, Sequence[str], int], str]
    read: Callable[..., LaunchPlan]
    nearest: Callable[[LaunchPlan], Iterator[tuple[str, LaunchPlan]]]
    script_fields: tuple[str, ...]
    command: str
    framework: str
    write_order: Callable[[PlanFile], str | None] = lambda plan: None
    check_degrees: Callable[[LaunchPlan], None] = lambda plan: None
    scalings: tuple[str, ...] | None = None
    own_types: tuple[str, ...] = ()


_LAUNCHERS: Mapping[str, Launcher] = {
    "megatron-lm": Launcher(
        megatron.write_megatron,
        megatron_script.read_megatron,
        megatron.nearest_megatron,
        (),
        "bash FILE",
        "megatron-lm",
        scalings=(LLAMA,),
    ),
    "accelerate": Launcher(
        accelerate.write_accelerate,
        accelerate_reading.read_accelerate,
        accelerate.nearest_accelerate,
        accelerate.HELD,
        "accelerate launch --config_file FILE train.py",
        "pytorch",
        check_degrees=accelerate.check_degrees,
    ),
    "megatron-bridge": Launcher(
        megatron_bridge.write_bridge,
        megatron_bridge.read_bridge,
        megatron.nearest_megatron,
        (),
        "torchrun scripts/training/run_recipe.py --recipe NAME $(grep -v '^#' FILE)",
        "megatron-lm",
        scalings=(LLAMA,),
    ),
    "torchtitan": Launcher(
        torchtitan.write_torchtitan,
        torchtitan.read_torchtitan,
        torchtitan.nearest_torchtitan,
        (),
        "torchrun -m torchtitan.train --module MODULE --config gnnplace_plan (FILE)",
        "torchtitan",
        torchtitan.schedule_csv,
        scalings=(LLAMA, YARN),
        own_types=TORCHTITAN_TYPES,
    ),
    "deepspeed": Launcher(
        deepspeed.write_deepspeed,
        deepspeed_reading.read_deepspeed,
        deepspeed.iterate_deepspeed_mends,
        ("pp", "layers", "recompute"),
        "deepspeed train.py --deepspeed_config FILE",
        "megatron-deepspeed",
        check_degrees=deepspeed.check_degrees,
    ),
    "nanotron": Launcher(
        nanotron.write_nanotron,
        nanotron.read_nanotron,
        nanotron.nearest_nanotron,
        (),
        "torchrun run_train.py --config-file FILE",
        "nanotron",
        check_degrees=nanotron.check_degrees,
        scalings=(),
    ),
}


SCRIPTS = ("accelerate", "deepspeed")
"""Launchers whose training script makes the model, and its adapters with it."""


def _without_adapters(name: str, launcher: Launcher) -> Launcher:
    """Return a launcher that refuses to write a plan with adapters, by its name."""

    def write(plan: LaunchPlan, lines: Sequence[str], gpus: int) -> str:
        adapters = plan.adapters
        if adapters is not None:
            raise InfeasibleError(
                f"{name}: its file as gnnplace writes it trains all parameters, no adapters "
                f"(--lora {adapters}); take {' or '.join(SCRIPTS)}, whose script makes them"
            )
        return launcher.write(plan, lines, gpus)

    return launcher if name in SCRIPTS else replace(launcher, write=write)


LAUNCHERS: Mapping[str, Launcher] = {
    name: _without_adapters(name, launcher) for name, launcher in _LAUNCHERS.items()
}


@dataclass(frozen=True)
class Reader:
    """A reader of files of a launcher that are read and not written.

    Attributes:
        read: Returns the plan of a text, given its path and values of the environment.
        framework: The framework whose times and bytes a run has.
    """

    read: Callable[[str, str, Mapping[str, str]], LaunchPlan]
    framework: str


READERS: Mapping[str, Reader] = {
    **{name: Reader(entry.read, entry.framework) for name, entry in LAUNCHERS.items()},
    "megatron-deepspeed": Reader(megatron_script.read_megatron, "megatron-deepspeed"),
    "gpt-neox": Reader(neox.read_neox, "megatron-deepspeed"),
    "nemo": Reader(nemo.read_nemo, "megatron-lm"),
    "llm-foundry": Reader(foundry.read_foundry, "pytorch"),
    "lightning": Reader(lightning_cli.read_lightning, "pytorch"),
    "axolotl": Reader(finetuners.read_axolotl, "pytorch"),
    "llama-factory": Reader(finetuners.read_factory, "pytorch"),
    "trl": Reader(finetuners.read_trl, "pytorch"),
}
"""Every launcher whose files are read; those of `LAUNCHERS` are written, too."""
OF_MEGATRON = ("megatron-lm", "megatron-bridge")
"""Launchers that say the same plans of one framework."""
OF_DEEPSPEED = ("deepspeed", "megatron-deepspeed", "gpt-neox")
"""Launchers whose runs have the times of Megatron-DeepSpeed."""


def get_launcher(name: str) -> Launcher:
    """Return the launcher of a name.

    Raises:
        InputError: If there is none. The message lists the names.
    """
    if name not in LAUNCHERS:
        near = suggestion(name, LAUNCHERS)
        raise InputError(
            f"launcher {name!r}: unknown; launchers: {', '.join(LAUNCHERS)}{near}"
        )
    return LAUNCHERS[name]


def get_reader(name: str) -> Reader:
    """Return the reader of a launcher's files.

    Raises:
        InputError: If there is no such launcher. The message lists the names.
    """
    if name not in READERS:
        near = suggestion(name, READERS)
        raise InputError(
            f"launcher {name!r}: unknown; launchers: {', '.join(READERS)}{near}"
        )
    return READERS[name]


def find_framework(launcher: str, plan: LaunchPlan) -> str:
    """Return the name of the framework whose times and bytes a run of a launch file has.

    Megatron-DeepSpeed's constants have ZeRO 0 and 1; its ZeRO 2 and 3 are priced as PyTorch's.
    """
    if plan.zero > 1 and launcher in OF_DEEPSPEED:
        return "pytorch"
    return get_reader(launcher).framework


def read_launch_file(
    path: str | Path,
    launcher: str | None = None,
    values: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Return the plan of a launch file; nothing of it is run.

    Args:
        path: The file.
        launcher: The launcher whose file it is; None: its content tells.
        values: Values that the file takes from the environment of the run, by name.

    Raises:
        FormatError: If the file cannot be read as such. The message names the place and the reason.
        InputError: If there is no such launcher.
    """
    name = launcher or find_launcher_of_file(path)
    plan = get_reader(name).read(launch_text(path), str(path), values or {})
    return replace(plan, source=str(path))


def find_launcher_of_file(path: str | Path) -> str:
    """Return the name of the launcher that a file is for.

    Raises:
        FormatError: If it cannot be read, or is of a launcher that is not read.
    """
    return find_told_launcher(launch_text(path), str(path))


def is_launch_file(path: str | Path) -> bool:
    """Return whether a file is one of a launcher; what cannot be read is none."""
    if (
        str(path).endswith((".sh", ".slurm", ".sbatch", ".toml"))
        and Path(path).is_file()
    ):
        return True
    try:
        find_told_launcher(launch_text(path), str(path))
    except FormatError as error:
        return "which is not read" in str(error)
    return True


def launch_text(path: str | Path) -> str:
    """Return the text of a launch file. For `FILE.py:FUNCTION` it is the text of the file.

    Raises:
        FormatError: If it cannot be read, or is too large to be one.
    """
    path = re.sub(r"(\.py):\w+$", r"\1", str(path))
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    if not Path(path).is_file():  # a folder, or a device that never ends
        raise FormatError(f"{path}: cannot be read: it is no file")
    if size > BYTES:
        raise FormatError(
            f"{path}: has {size / 1e6:.0f} MB; a launch file has 1 MB at most"
        )
    return read_text(path)
