"""Options that several commands share, each with its sentence of help."""

from __future__ import annotations

from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

import gnnplace
from gnnplace.cli.numbers import (
    BUDGET,
    COUNT,
    DEVICES,
    MICROBATCHES,
    NOT_NEGATIVE,
    POSITIVE,
    SECONDS,
    SEED,
    STEPS,
    Range,
    add_number,
    add_options,
    from_args,
    size,
)
from gnnplace.problem.cluster import preset_names
from gnnplace.problem.constraints import Constraints, from_words
from gnnplace.problem.placement import OPTIONS_KEY
from gnnplace.sharding.answers import BANDWIDTH, FLOPS, SplitOptions

AUTO = "auto"
SHARED: dict[str, tuple[str] | tuple[Any, Any, str]] = {
    "accept-other-loss": (
        bool, False, "Cut the batch into micro-batches also where that changes the loss.",
    ),
    "objective": (
        str, gnnplace.TIME,
        "What to minimise: time (of one step) or throughput (the interval between steps).",
    ),
    "store": (
        "The store of measurements: an SQLite file, an SQLAlchemy URL or none; by "
        "default $GNNPLACE_STORE, else a file in the user's data folder.",
    ),
    "calibration": (
        "A calibration.json, as fidelity or measurements calibrate writes it.",
    ),
    "headroom": (
        "What a placement leaves free on every device: a share, as 10%%, or bytes, as "
        "2GB, or auto: what CUDA, NCCL and the allocator take on GPUs.",
    ),
    "table": ("A table by module to write: FILE.md or FILE.csv.",),
    "trace": ("A trace.json of the step to write; it opens in Perfetto.",),
    "fresh": (bool, False, "Measure op and link times anew, whatever is in the cache."),
    "links": (
        "A log of nccl-tests (sendrecv_perf, all_reduce_perf, …) run on this cluster; "
        "what it measured replaces the figures of the links.",
    ),
    "json": (bool, False, "Print one JSON object."),
}  # fmt: skip
"""Options of several commands: kind, default and help; ``check_output`` is to come before work."""
CAPTURE = ("optimizer", "dtype", "forward_only", "groups", "microbatches", "accept_other_loss")


def add_shared(parser: ArgumentParser, *names: str) -> None:
    """Declares some of the options that several commands share."""
    add_options(parser, *((f"--{name}", *SHARED[name]) for name in names))


def add_capture_options(parser: ArgumentParser, *, auto: bool = False, many: bool = False) -> None:
    """How a model is captured.

    Args:
        parser: the parser of a command.
        auto: ``--microbatches`` may be ``auto``.
        many: ``--microbatches`` is a list to try.
    """
    add_options(
        parser,
        ("--optimizer", str, "sgd", "The optimizer of the step: sgd or adamw."),
        ("--dtype", str, "float32", "The type of parameters: float32 or bfloat16."),
        ("--forward-only", bool, False, "Capture inference instead of a training step."),
    )
    add_shared(parser, "accept-other-loss")
    told = "The number of ops to group the graph to; by default every op is placed by itself."
    add_options(parser, ("--groups", (int | None, COUNT), None, told))
    if many:
        told = "Numbers of micro-batches to try, separated by commas; 1,4 by default."
        parser.add_argument("--microbatches", default=None, help=told)
        return
    kind: Any = int | Literal["auto"] if auto else int
    told = "The number of shares that the batch is cut into"
    told += "; auto tries several and keeps the best." if auto else "."
    add_number(parser, "--microbatches", kind, MICROBATCHES, default=1, help=told)


def capture_options(args: Namespace, **changed: Any) -> gnnplace.CaptureOptions:
    """The capture options among a command's arguments; with ``auto`` of the whole batch."""
    given = {key: getattr(args, key) for key in CAPTURE} | changed
    given["microbatches"] = 1 if given["microbatches"] == AUTO else given["microbatches"]
    return gnnplace.CaptureOptions(**given)


def options_entry(options: gnnplace.CaptureOptions) -> dict[str, Any]:
    """What a problem's or a placement's file says of how the model was captured."""
    return {OPTIONS_KEY: options.to_data()}


def add_constraints(parser: ArgumentParser, *, limits: bool = True) -> None:
    """Declares what a user asks of the answer.

    Args:
        parser: the parser of a command.
        limits: it may ask for few devices.
    """
    for name, told in (
        ("pin", "Modules and where they must be, as 'encoder.*=gpu:0' or 'head=gpu:0,gpu:1'."),
        ("forbid", "Modules and where they must not be, as 'embed=gpu:1'."),
        ("together", "Modules that share one device, as 'embed,head'."),
    ):
        parser.add_argument(
            f"--{name}", action="append", default=None, metavar="RULE", help=f"{told} Repeatable."
        )
    if limits:
        told = "The number of devices that are used at most."
        add_number(parser, "--max-devices", int, COUNT, default=None, help=told)
    parser.add_argument(
        "--constraints",
        type=str | None,
        default=None,
        help="A YAML file with pin, forbid, together, headroom, max_devices, by_module, no_split, "
        "max_memory.",
    )


def add_by_module(parser: ArgumentParser) -> None:
    """Declares what is asked of modules as wholes, and of memory, in accelerate's words."""
    add_options(
        parser,
        (
            "--by-module",
            bool,
            False,
            "Place modules, not ops: every op is where accelerate's hooks would run it.",
        ),
    )
    for name, metavar, told in (
        ("no-split", "CLASS", "A class whose modules are on one device each, as GPT2Block."),
        ("max-memory", "DEVICE=BYTES", "What a device has at most, as gpu:0=10GiB or 0=10GiB."),
    ):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=None,
            metavar=metavar,
            help=f"{told} Repeatable.",
        )


def constraints_of(args: Namespace, **changed: Any) -> Constraints:
    """What the user asks of the answer: the file's constraints and the flags'."""
    headroom = changed.get("headroom", getattr(args, "headroom", None))
    return from_words(
        args.constraints,
        pin=args.pin or (),
        forbid=args.forbid or (),
        together=args.together or (),
        headroom=headroom,
        max_devices=getattr(args, "max_devices", None),
        by_module=getattr(args, "by_module", False),
        no_split=getattr(args, "no_split", None) or (),
        max_memory=getattr(args, "max_memory", None) or (),
    )


def add_search_options(parser: ArgumentParser, budget: float = gnnplace.DEFAULT_BUDGET) -> None:
    """Budget, with its default, and seed of a search."""
    add_options(
        parser,
        (
            "--budget",
            (float, BUDGET),
            budget,
            "The seconds that each placer may search; 0 takes its first choice.",
        ),
        ("--seed", (int, SEED), 0, "The seed of all randomness."),
    )


def add_placer_options(parser: ArgumentParser) -> None:
    """The placer and the options that placers have."""
    add_options(
        parser,
        (
            "--placer",
            str,
            "best",
            f"The placer: {', '.join(gnnplace.placer_names())}, or module:Class.",
        ),
    )
    for name, option in gnnplace.placer_options().items():
        having = [row.name for row in gnnplace.ROSTER.values() if name in row.options]
        told = f"{option.help} For {', '.join(having)}."
        if option.kind is str:
            parser.add_argument(f"--{name}", default=None, help=told)
        else:
            allowed = Range(least=option.least)
            add_number(parser, f"--{name}", option.kind, allowed, default=None, help=told)


def placer_options(args: Namespace) -> dict[str, Any]:
    """The placer options among a command's arguments; None where one is not given."""
    return {name: getattr(args, name) for name in gnnplace.placer_options()}


def add_run_options(parser: ArgumentParser) -> None:
    """How a placement is executed, and where its measured steps are kept."""
    add_options(
        parser,
        ("--steps", (int, STEPS), 10, "The number of steps to time."),
        ("--mode", str, AUTO, "measured (a core or GPU each), emulated (virtual clock) or auto."),
        ("--transport", str, "shm", "How workers exchange tensors: shm or gloo."),
        (
            "--timeout",
            (float, SECONDS),
            120.0,
            "The seconds without progress after which a run is given up.",
        ),
    )
    add_shared(parser, "store")


def add_html(parser: ArgumentParser, what: str) -> None:
    """Where a page about the answer is written; ``check_output`` before the work."""
    parser.add_argument(
        "--html", default=None, metavar="FILE", help=f"A page to write, as page.html: {what}."
    )


def add_chakra(parser: ArgumentParser) -> None:
    """Where the step is written for simulators that read Chakra."""
    parser.add_argument(
        "--chakra",
        default=None,
        metavar="FOLDER",
        help="A folder for the step as Chakra execution traces in JSON, one a device.",
    )


ZOO = (
    *("bert", "densenet", "fractal", "gnmt", "gpt2", "highway", "inception", "mlp", "moe"),
    *("nasnet", "recommender", "resnet50", "rnn_lm", "searched_cnn", "searched_rnn", "seq2seq"),
    *("small_resnet", "speech", "tagger", "tree_lstm", "two_tower", "unet", "vit", "wired"),
)
"""Names of the zoo, for the help: to ask the zoo itself would import torch."""


def model_help(what: str = "The model") -> str:
    """The help of MODEL, with the zoo."""
    return (
        f"{what}: module:callable, path/to/file.py:callable (it returns model, inputs[, loss]), "
        "hf:CONFIG (a model type, a known size, or a local folder with a config.json; nothing is "
        f"downloaded), or a name of the zoo: {', '.join(ZOO)}."
    )


def cluster_help(what: str = "cpu:N, cuda:N, auto, a preset's name or a YAML file") -> str:
    """The help of ``--cluster``, with the presets."""
    return f"{what}. Presets: {', '.join(preset_names())}."


def add_output(parser: ArgumentParser, what: str, *, required: bool = True) -> None:
    """Where the result is written."""
    parser.add_argument("-o", "--output", required=required, default=None, help=what)


def add_split_options(parser: ArgumentParser) -> None:
    """Devices, speeds, allowed splits, memory."""
    told = "The cluster whose fabric says what collectives take: a preset's name or a YAML file"
    parser.add_argument("--cluster", type=str | None, default=None, help=cluster_help(told))
    add_shared(parser, "links")
    add_options(
        parser,
        (
            "--devices",
            (int, DEVICES),
            None,
            "The number of devices: 8 by default, 2 for what is executable.",
        ),
        ("--exactly", bool, False, "Every layer of a network uses all devices."),
        ("--powers-of-two", bool, False, "A network is split by powers of two alone."),
        ("--flops", (float, POSITIVE), FLOPS, "The FLOP/s of a device."),
        ("--bandwidth", (float, POSITIVE), BANDWIDTH, "The bytes per second of a link."),
        ("--memory-limit", (size, NOT_NEGATIVE), None, "The bytes that a device has, as 16GB."),
    )


def split_options(args: Namespace) -> SplitOptions:
    """The options of a split among a command's arguments."""
    return from_args(SplitOptions, args)
