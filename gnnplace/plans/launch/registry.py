"""The launchers whose files are written and read, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnplace.errors import FormatError, InputError, suggestion
from gnnplace.files import read_text
from gnnplace.plans.launch import (
    accelerate,
    deepspeed,
    megatron,
    megatron_bridge,
    nanotron,
    torchtitan,
)
from gnnplace.plans.launch.launch_plan import BYTES, LaunchPlan
from gnnplace.plans.plan import PlanFile


@dataclass(frozen=True)
class Launcher:
    """A launcher.

    Attributes:
        write: makes the text of its file of a plan, lines for its head, and the GPUs of a server;
            raises `InfeasibleError` where it cannot say the plan.
        read: makes a plan of a text; errors begin with its second argument.
        nearest: what it cannot say of a plan, one thing at a time, with the plan that it can.
        held: fields of a plan that are the script's: its file has them as a comment.
        command: what starts a run by its file, FILE.
        framework: whose times and bytes a run of it has.
        beside: makes the order of actions as a file beside its file, FILE with `.csv`; None where
            its file says the order.
    """

    write: Callable[[LaunchPlan, Sequence[str], int], str]
    read: Callable[[str, str], LaunchPlan]
    nearest: Callable[[LaunchPlan], Iterator[tuple[str, LaunchPlan]]]
    held: tuple[str, ...]
    command: str
    framework: str
    beside: Callable[[PlanFile], str | None] = lambda plan: None


LAUNCHERS: Mapping[str, Launcher] = {
    "megatron-lm": Launcher(
        megatron.write_megatron, megatron.read_megatron, megatron.nearest_megatron, (),
        "bash FILE", "megatron-lm",
    ),
    "accelerate": Launcher(
        accelerate.write_accelerate, accelerate.read_accelerate, accelerate.nearest_accelerate,
        accelerate.HELD, "accelerate launch --config_file FILE train.py", "pytorch",
    ),
    "megatron-bridge": Launcher(
        megatron_bridge.write_bridge, megatron_bridge.read_bridge, megatron.nearest_megatron,
        (), "torchrun scripts/training/run_recipe.py --recipe NAME $(grep -v '^#' FILE)",
        "megatron-lm",
    ),
    "torchtitan": Launcher(
        torchtitan.write_torchtitan, torchtitan.read_torchtitan, torchtitan.nearest_torchtitan,
        (), "torchrun -m torchtitan.train --module MODULE --config gnnplace_plan (FILE)",
        "torchtitan", torchtitan.schedule_csv,
    ),
    "deepspeed": Launcher(
        deepspeed.write_deepspeed, deepspeed.read_deepspeed, deepspeed.nearest_deepspeed,
        ("pp", "layers", "recompute"), "deepspeed train.py --deepspeed_config FILE",
        "megatron-deepspeed",
    ),
    "nanotron": Launcher(
        nanotron.write_nanotron, nanotron.read_nanotron, nanotron.nearest_nanotron, (),
        "torchrun run_train.py --config-file FILE", "nanotron",
    ),
}  # fmt: skip


SIGNS = {  # what the files of one launcher have and those of others do not
    "torchtitan": r"(?m)^(from|import) torchtitan|Trainer\.Config",
    "megatron-bridge": r"(?m)^[ \t]{0,40}((cfg|config)\.)?(model|train|ddp)\.\w+[ \t]*=",
    "megatron-lm": r'(?m)^[^#"\n]*--(tensor-model-parallel-size|num-layers|micro-batch-size)',
    "nanotron": r"(?m)^parallelism:|^tokens:",
    "accelerate": r"(?m)^(distributed_type|compute_environment|num_processes):",
    "deepspeed": r'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"\s*:',
}


def launcher_of(name: str) -> Launcher:
    """The launcher of a name.

    Raises:
        InputError: there is none; the names are listed.
    """
    if name not in LAUNCHERS:
        near = suggestion(name, LAUNCHERS)
        raise InputError(f"launcher {name!r}: unknown; launchers: {', '.join(LAUNCHERS)}{near}")
    return LAUNCHERS[name]


def read_launch_file(path: str | Path, launcher: str | None = None) -> LaunchPlan:
    """The plan of a launch file; nothing of it is run.

    Args:
        path: the file.
        launcher: whose it is; None: it is told by its content.

    Raises:
        FormatError: the file cannot be read as such; names the place and the fault.
        InputError: there is no such launcher.
    """
    return launcher_of(launcher or launcher_of_file(path)).read(launch_text(path), str(path))


def launcher_of_file(path: str | Path) -> str:
    """The name of the launcher that a file is for.

    Raises:
        FormatError: it cannot be read, or is none's.
    """
    return launcher_told_by(launch_text(path), str(path))


def is_launch_file(path: str | Path) -> bool:
    """Whether a file's content tells a launcher; what cannot be read is none."""
    try:
        launcher_told_by(launch_text(path), str(path))
    except FormatError:
        return False
    return True


def launch_text(path: str | Path) -> str:
    """The text of a launch file; of `FILE.py:FUNCTION` that of the file.

    Raises:
        FormatError: it cannot be read, or is too large to be one.
    """
    path = re.sub(r"(\.py):\w+$", r"\1", str(path))
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    if not Path(path).is_file():  # a folder, or a device that never ends
        raise FormatError(f"{path}: cannot be read: it is no file")
    if size > BYTES:
        raise FormatError(f"{path}: has {size / 1e6:.0f} MB; a launch file has 1 MB at most")
    return read_text(path)


def launcher_told_by(text: str, source: str) -> str:
    """The launcher that a text is for.

    Raises:
        FormatError: it is none's.
    """
    for name, pattern in SIGNS.items():
        if re.search(pattern, text):
            return name
    raise FormatError(f"{source}: no launcher is told by it; say which: --from {', '.join(SIGNS)}")
