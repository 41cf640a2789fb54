"""Options of commands: ``options.json`` has a row for each, with its sentence of help.

A row has a name (``-o --output``), a kind (of ``KINDS``, ``flag``, ``list`` or ``text or none``; a
text, where it says none), a default, its help, and what else argparse takes. ``@NAME`` stands for
all rows of a group, or for the options that placers have. A name in braces of a help stands for
what there is to choose from (``NAMES``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.commands import ROWS
from gnnplace.cli.numbers import KINDS, Range, from_args, list_ranges
from gnnplace.errors import InputError

if TYPE_CHECKING:
    from gnnplace.problem import Constraints
    from gnnplace.sharding import SplitOptions

AUTO = "auto"
PLACER = "@placer"
CAPTURE = (
    "optimizer",
    "dtype",
    "forward_only",
    "groups",
    "microbatches",
    "accept_other_loss",
)
_WORKLOADS = Path(gnnplace.__file__).with_name("zoo") / "workloads.json"
ZOO = tuple(sorted(json.loads(_WORKLOADS.read_text())))
"""Names of the zoo, for the help: to ask the zoo itself would import torch."""
Row = str | Mapping[str, Any]


def add_command(parser: ArgumentParser, command: str) -> None:
    """Declare the arguments of a command."""
    add_options(parser, ROWS["commands"][command]["arguments"])


def add_options(parser: ArgumentParser, rows: Iterable[Row]) -> None:
    """Declare the options that rows describe, as the module's docstring explains."""
    for row in rows:
        if row == PLACER:
            _add_placer_options(parser)
        elif isinstance(row, str):
            add_options(parser, ROWS["groups"][row.removeprefix("@")])
        else:
            _add_option(parser, **row)


def _add_option(
    parser: ArgumentParser, name: str, help: str, kind: str = "text", **settings: object
) -> None:
    """Declare one option or argument."""
    if kind in KINDS:
        settings["type"], allowed = KINDS[kind]
        list_ranges(parser)[name] = allowed
    elif kind in ACTIONS:
        settings["action"] = ACTIONS[kind]
    elif kind == "text or none":
        settings["type"] = str | None
    # A name in braces stands for what there is to choose from.
    for choices in re.findall(r"\{(\w+)\}", help):
        names = MODELS if choices == "model" else ", ".join(NAMES[choices]())
        help = help.replace(f"{{{choices}}}", names)
    parser.add_argument(*name.split(), help=help, **settings)


ACTIONS = {"flag": "store_true", "list": "append"}


def _add_placer_options(parser: ArgumentParser) -> None:
    """Declare ``--placer`` and the options that placers have."""
    help_text = "The placer: {placers}, or module:Class."
    _add_option(parser, "--placer", help_text, default="best")
    for name, option in gnnplace.placer_options().items():
        having = [row.name for row in gnnplace.ROSTER.values() if name in row.options]
        settings: dict[str, Any] = {}
        if option.kind is not str:
            settings["type"] = option.kind
            list_ranges(parser)[f"--{name}"] = Range(minimum=option.least)
        help_text = f"{option.help} For {', '.join(having)}."
        _add_option(parser, f"--{name}", help_text, default=None, **settings)


def _read_listed_names(module: str, names: str) -> tuple[str, ...]:
    """Return the names that a module lists. It is imported only when a help asks for them."""
    return tuple(getattr(import_module(module), names))


def _catalogue() -> tuple[str, ...]:
    """Return the names of models, with and without their owners, and those of the zoo."""
    names = import_module("gnnplace.models").model_names()
    return (
        *dict.fromkeys((*names, *(name.rpartition("/")[2] for name in names), *ZOO)),
    )


NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "model": _catalogue,
    "presets": lambda: import_module("gnnplace.problem.cluster").preset_names(),
    "placers": gnnplace.placer_names,
    "readers": partial(_read_listed_names, "gnnplace.plans.launchers", "READ_NAMES"),
    "launchers": partial(_read_listed_names, "gnnplace.plans.launchers", "NAMES"),
    "formats": partial(_read_listed_names, "gnnplace.problem.formats", "READERS"),
}
"""What there is to choose from, by the name in braces of a help."""
MODELS = (
    "module:callable, path/to/file.py:callable (it returns model, inputs[, loss]), "
    "a name of the catalogue (Qwen/Qwen3-8B, llama-3.1-70b), hf:CONFIG (a model type or a "
    "local folder with a config.json; nothing is downloaded), or a name of the zoo, with or "
    f"without zoo: before it: {', '.join(ZOO)}."
)
"""What a help says of the models that there are."""


def capture_options(args: Namespace, **changed: object) -> gnnplace.CaptureOptions:
    """Return the capture options among a command's arguments.

    With ``--microbatches auto`` they are those of the whole batch.
    """
    options = {key: getattr(args, key) for key in CAPTURE} | changed
    options["microbatches"] = (
        1 if options["microbatches"] == AUTO else options["microbatches"]
    )
    return gnnplace.CaptureOptions(**options)


def options_entry(options: gnnplace.CaptureOptions) -> dict[str, Any]:
    """Return the entry of a problem's or placement's file that says how the model was captured."""
    from gnnplace.problem import OPTIONS_KEY

    return {OPTIONS_KEY: options.to_data()}


def read_all_constraints(args: Namespace, **changed: Any) -> Constraints:
    """Return the user's constraints: those of the file and those of the flags."""
    from gnnplace.problem import ConstraintWords

    headroom = changed.get("headroom", getattr(args, "headroom", None))
    words = ConstraintWords(
        pin=args.pin or (),
        forbid=args.forbid or (),
        together=args.together or (),
        headroom=headroom,
        max_devices=getattr(args, "max_devices", None),
        by_module=getattr(args, "by_module", False),
        no_split=getattr(args, "no_split", None) or (),
        max_memory=getattr(args, "max_memory", None) or (),
    )
    return words.constraints(args.constraints)


def parse_set_values(args: Namespace) -> dict[str, str]:
    """Return the values that `--set NAME=VALUE` gives.

    Raises:
        InputError: One is no NAME=VALUE, or a name is there twice.
    """
    values: dict[str, str] = {}
    for pair in args.environment_values or ():
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InputError(f"--set {pair}: must be NAME=VALUE")
        if name in values:
            raise InputError(f"--set {name}: is given twice")
        values[name] = value
    return values


def placer_options(args: Namespace) -> dict[str, Any]:
    """Return the placer options among a command's arguments; None where one is not given."""
    return {name: getattr(args, name) for name in gnnplace.placer_options()}


def split_options(args: Namespace) -> SplitOptions:
    """Return the options of a split among a command's arguments."""
    from gnnplace.sharding import SplitOptions

    return from_args(SplitOptions, args)
