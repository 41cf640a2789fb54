"""``gnnplace train fit|validate|test|predict|sweep|export``."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from pathlib import Path

from gnnplace.errors import InputError
from gnnplace.imports import importable
from gnnplace.train.preflight import check_recipe


def quiet() -> None:
    """Silence warnings and advertisements that say nothing about a training run here."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for message in (
        "does not have many workers",
        "LeafSpec",
        "LightningCLI's args parameter",
    ):
        warnings.filterwarnings("ignore", f".*{message}.*")
    information = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    information.addFilter(lambda record: "litlogger" not in record.getMessage())


def start_no_python() -> None:
    """Tell typeshed_client, which jsonargparse reads stubs by, where this Python's modules are.

    It would start another Python to ask, which prints a traceback if this one is killed meanwhile.
    """
    with suppress(ImportError):
        import typeshed_client

        get_context = typeshed_client.get_search_context
        paths = [Path(path) for path in sys.path if path]
        typeshed_client.get_search_context = partial(get_context, search_path=paths)


METRICS = {
    "Metric": "torchmetrics.metric",
    "MetricCollection": "torchmetrics.collections",
}
"""What Lightning itself takes from torchmetrics, and the modules where it stands."""


def defer_torchmetrics() -> None:
    """Have ``import torchmetrics`` import no metric until one is asked for.

    Lightning imports it for its version and two base classes. It would import all its metrics, and
    with them transformers and scipy's signal processing: a quarter of what ``fit --help`` takes.
    Any other name that somebody asks it for imports it as a whole, as usual.
    """
    spec = find_spec("torchmetrics")
    if "torchmetrics" in sys.modules or spec is None or spec.loader is None:
        return
    loader = spec.loader
    package = module_from_spec(spec)

    def get_name(name: str) -> object:
        if name in METRICS:
            import_module("torchmetrics.utilities")  # first: the two import each other
            return getattr(import_module(METRICS[name]), name)
        if name.startswith("__"):
            raise AttributeError(f"module 'torchmetrics' has no attribute {name!r}")
        vars(package).pop("__getattr__", None)
        loader.exec_module(package)
        return getattr(package, name)

    vars(package).update(
        __getattr__=get_name,
        __version__=version("torchmetrics"),
        # The module of the base classes takes it from here.
        _logger=logging.getLogger("torchmetrics"),
    )
    sys.modules["torchmetrics"] = package


PLACES = ("recipes", "../../trainers")  # Folders of recipes: in a wheel, in a checkout


def _recipe(arg: str) -> str:
    option, equals, path = arg.rpartition("=")
    if (
        not (path.startswith("trainers/") and path.endswith(".yaml"))
        or Path(path).exists()
    ):
        return arg
    candidates = [
        Path(__file__).parent / place / path.removeprefix("trainers/")
        for place in PLACES
    ]
    match = next(
        (candidate.resolve() for candidate in candidates if candidate.exists()), path
    )
    return f"{option}{equals}{match}"


COMMANDS = ("fit", "validate", "test", "predict", "sweep", "export")


def main(args: list[str]) -> None:
    """Run the training command line.

    ``--model`` is the training algorithm (a class of ``gnnplace.train``), ``--data`` the problems
    (``ProblemDataModule``); ``--config`` a recipe of ``trainers/``.

    Args:
        args: Arguments after ``gnnplace train``.

    Raises:
        InputError: An argument is wrong; most are found before any slow import.
        SystemExit: Code 143 if SIGTERM ended the run, for which Lightning's own says 0.
    """
    if not args or not (args[0] in COMMANDS or args[0].startswith("-")):
        if args:
            fault = f"train {args[0]}: unknown"
        else:
            fault = "train: what?"
        raise InputError(f"{fault}; give one of {', '.join(COMMANDS)}, or --help")
    if args[0] == "export":
        from gnnplace.train.export import run_export

        run_export(args[1:])
        return
    args = [_recipe(arg) for arg in args]
    check_recipe(args)
    quiet()
    start_no_python()
    defer_torchmetrics()
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    previous_arguments = sys.argv[1:]
    # Lightning starts further processes with these.
    sys.argv[1:] = ["train", *args]
    try:
        with importable(""):  # classes beside the recipe
            if args[:1] == ["sweep"]:
                from gnnplace.train.sweep import run_sweep

                run_sweep(args[1:])
            else:
                from gnnplace.train.training_cli import TrainingCLI

                TrainingCLI(args)
    except SIGTERMException:
        sys.exit(128 + signal.SIGTERM)
    finally:
        sys.argv[1:] = previous_arguments
