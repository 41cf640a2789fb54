"""The command line: parses, calls, prints. Exit 0 done, 2 bad input (one line), 3 infeasible."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Literal

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from gnnplace.errors import GnnplaceError, InputError

PLACERS = (
    "single,contiguous,interleaved,expert,heft,heft-contention,etf,m-topo,m-sct,min-cut,"
    "round-robin,random,annealing,learned,best"
)
STUDY_PARTS = "seen,held-out,networks,searched,own"
USAGE = """gnnplace: finds which device should run each operation of a PyTorch training step.

  gnnplace demo                                     the main job on a built-in model
  gnnplace capture MODEL -o graph.json              a model's training step as a graph
  gnnplace profile MODEL --cluster C -o problem.json
  gnnplace place PROBLEM|MODEL [--cluster C] -o placement.json
  gnnplace simulate PROBLEM PLACEMENT [--json]      predicted step time and memory
  gnnplace execute MODEL PLACEMENT                  runs it, checks it, measures it
  gnnplace compare MODEL|PROBLEM [--cluster C]      every placer side by side
  gnnplace shard SHARDING|NETWORK|MODEL [--devices P]     the best way to split every layer
  gnnplace hybrid MODEL|PROBLEM --cluster C         data-parallel groups of devices: how many
  gnnplace convert FILE --from FORMAT -o problem.json
  gnnplace report PROBLEM PLACEMENT... -o report.html
  gnnplace bench SUITE.yaml -o results/ | summary results/*.jsonl
  gnnplace fidelity MODEL --cluster C               predicted against measured; calibration
  gnnplace measurements list|export|prune|calibrate every step that was measured
  gnnplace data build|verify FOLDER                 captures models as graphs to learn from
  gnnplace study orders -o FOLDER                   traversal orders by family
  gnnplace train fit|validate|test|predict|sweep --config trainers/NAME.yaml

gnnplace COMMAND --help says more. MODEL is a zoo name, hf:CONFIG or module:callable; C is cpu:N,
cuda:N, auto, a preset or a YAML file.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits.

    Args:
        arguments: those of the process by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Torch and what comes with it are a million objects that stay. To look for garbage among them,
    # again and again while they are imported and once more at the end, takes a third of the time.
    gc.set_threshold(50_000, 20, 100)
    code = run(given)
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command; returns its exit code. Errors of ours become one line on stderr."""
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            sys.stdout.write(USAGE)
            return 0 if arguments else 2
        if arguments[0] == "train":
            return _train(arguments[1:])
        return _command(arguments)
    except GnnplaceError as error:
        return _fail(str(error), error.exit_code)
    except ArgumentError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing half-written is left", 130)
    except BrokenPipeError:
        return 141


def _fail(message: str, code: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    sys.stderr.write(f"gnnplace: {line}\n")
    return code


def _train(arguments: list[str]) -> int:
    from gnnplace.train.cli import main as train

    train(arguments)
    return 0


def _command(arguments: list[str]) -> int:
    name = arguments[0]
    if name not in COMMANDS:
        known = ", ".join([*COMMANDS, "train"])
        raise InputError(f"command {name!r}: unknown; commands: {known}")
    build, module = COMMANDS[name]
    parser = ArgumentParser(prog=f"gnnplace {name}", exit_on_error=False)
    build(parser)
    parsed = parser.parse_args(arguments[1:])
    # Imported late: help and bad arguments should not wait for torch.
    function: Callable[[Namespace], int] = getattr(import_module(module), name)
    return function(parsed)


def _capture_options(parser: ArgumentParser, *, auto: bool = False, listed: bool = False) -> None:
    parser.add_argument("--optimizer", default="sgd", help="sgd or adamw")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument("--forward-only", action="store_true", help="inference, no training step")
    parser.add_argument("--groups", type=int, default=200, help="ops of the problem to aim at")
    if listed:
        what = "numbers to try, comma-separated: shares of a group's batch; 1,4 by default"
        parser.add_argument("--microbatches", default=None, help=what)
        return
    kind = int | Literal["auto"] if auto else int
    about = "shares of the batch, M" + ("; auto finds how many" if auto else "")
    parser.add_argument("--microbatches", type=kind, default=1, help=about)


def _search_options(parser: ArgumentParser) -> None:
    parser.add_argument("--budget", type=float, default=2.0, help="seconds to search a placer")
    parser.add_argument("--seed", type=int, default=0)


def _objective(parser: ArgumentParser) -> None:
    what = "time (of one step) or throughput (interval between pipelined steps)"
    parser.add_argument("--objective", default="time", help=what)


def _run_options(parser: ArgumentParser, *, store: bool = True) -> None:
    parser.add_argument("--steps", type=int, default=10, help="steps to time")
    parser.add_argument("--mode", default="auto", help="auto, measured or emulated")
    parser.add_argument("--transport", default="shm", help="shm or gloo")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds without progress")
    if store:
        _store(parser)


def _calibration(parser: ArgumentParser) -> None:
    what = "calibration.json, as fidelity or measurements calibrate writes it"
    parser.add_argument("--calibration", default=None, help=what)


def _output(parser: ArgumentParser, what: str, *, required: bool = True) -> None:
    parser.add_argument("-o", "--output", required=required, default=None, help=what)


def _demo(parser: ArgumentParser) -> None:
    parser.description = "Captures, profiles, places, executes, verifies and reports one model."
    parser.add_argument("--model", default="two_tower", help="a model, as everywhere")
    parser.add_argument("--cluster", default="cpu:2")
    parser.add_argument("--output", default="demo-output", help="folder of report and trace")
    _search_options(parser)
    _capture_options(parser, auto=True)
    _run_options(parser)


def _capture(parser: ArgumentParser) -> None:
    parser.description = "Writes a model's step as a graph: a problem with estimated times."
    parser.add_argument("model")
    _output(parser, "graph.json")
    parser.add_argument("--fake", action="store_true", help="never allocate the model's tensors")
    _capture_options(parser)


def _profile(parser: ArgumentParser) -> None:
    parser.description = "Measures a model's ops and writes the problem of placing it."
    parser.add_argument("model")
    parser.add_argument("--cluster", required=True)
    _output(parser, "problem.json")
    _capture_options(parser)
    _calibration(parser)


def _place(parser: ArgumentParser) -> None:
    parser.description = "Finds a device for every op and a sequence for every device."
    parser.add_argument("what", help="a problem file or a model")
    parser.add_argument("--cluster", default=None)
    parser.add_argument("--placer", default="best")
    parser.add_argument("--order", default=None, help="traversal order of the policy")
    _objective(parser)
    what = "folder of a policy, as training exports it; default: the package's own"
    parser.add_argument("--checkpoint", default=None, help=what)
    parser.add_argument("--workers", type=int, default=1, help="threads of exact's solver")
    _output(parser, "placement.json")
    _search_options(parser)
    _capture_options(parser, auto=True)
    _calibration(parser)


def _simulate(parser: ArgumentParser) -> None:
    parser.description = "Predicts step time and memory of a placement."
    parser.add_argument("problem")
    parser.add_argument("placement")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _execute(parser: ArgumentParser) -> None:
    parser.description = "Runs a placement for real, checks it against one device, measures it."
    parser.add_argument("model")
    parser.add_argument("placement")
    parser.add_argument("--cluster", default=None, help="default: the placement's cpu or cuda")
    parser.add_argument("--trace", default=None, help="write a trace that Perfetto opens")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--no-eager", action="store_true", help="do not time eager PyTorch beside")
    _run_options(parser)
    _capture_options(parser)


def _compare(parser: ArgumentParser) -> None:
    parser.description = "Every placer side by side, with best, bound and gap."
    parser.add_argument("what", help="a problem file or a model")
    parser.add_argument("--cluster", default=None)
    parser.add_argument("--placers", default="", help="comma-separated; all by default")
    _objective(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _search_options(parser)
    _capture_options(parser)


def _convert(parser: ArgumentParser) -> None:
    parser.description = "Reads a public format as a problem."
    parser.add_argument("file")
    parser.add_argument("--from", dest="format", required=True, help="pipedream, dnn-partitioning")
    parser.add_argument("--cluster", default=None)
    _output(parser, "problem.json")


def _report(parser: ArgumentParser) -> None:
    parser.description = "A self-contained page with timeline, memory, graph and table."
    parser.add_argument("problem")
    parser.add_argument("placements", nargs="+")
    _output(parser, "report.html")
    parser.add_argument("--trace", default=None, help="write a trace that Perfetto opens")


def _bench(parser: ArgumentParser) -> None:
    parser.description = "Runs a suite; resumable, one JSON line a cell. Or sums up such lines."
    parser.add_argument("suite", help="a suite file; or: summary FILE...")
    parser.add_argument("files", nargs="*", help="files of lines to sum up")
    _output(parser, "folder of results, or of tables and plots", required=False)
    parser.add_argument("--placers", default="", help="instead of the suite's, comma-separated")
    parser.add_argument("--budgets", default="", help="instead of the suite's, comma-separated")
    parser.add_argument("--seeds", default="", help="instead of the suite's, comma-separated")
    parser.add_argument("--part", default="", help="K/N: the K-th of N parts of the problems")
    parser.add_argument("--processes", type=int, default=0, help="run cells in so many workers")
    parser.add_argument("--dask", default="", help="run cells on the cluster of this scheduler")
    parser.add_argument("--keep", action="store_true", help="keep problems and placements too")
    parser.add_argument("--best-known", default=None, help="summary: a file that counts as well")
    parser.add_argument("--record", action="store_true", help="summary: writes that file anew")
    parser.add_argument("--rival", default="annealing", help="summary: wins and losses against it")
    parser.add_argument("--only", default="", help="summary: problems whose key has this text")


def _data(parser: ArgumentParser) -> None:
    parser.description = "Captures models as graphs, those that are there are kept; or checks them."
    parser.add_argument("action", help="build or verify")
    parser.add_argument("folder", help="one file a graph, a card and checksums")
    parser.add_argument("--recipe", default="store", help="build: what is captured")
    parser.add_argument("--models", default="", help="comma-separated models or families; all")


def _study(parser: ArgumentParser) -> None:
    parser.description = "Trains and evaluates the policy under each traversal order, and reports."
    parser.add_argument("what", help="orders")
    _output(parser, "folder of rows and reports; what is there is not run again")
    parser.add_argument("--orders", default="", help="comma-separated; all")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each order")
    parser.add_argument("--generations", type=int, default=90, help="of each training")
    parser.add_argument("--parts", default=STUDY_PARTS, help="problems to evaluate on")
    parser.add_argument("--report", action="store_true", help="run nothing, report what is there")


def _shard(parser: ArgumentParser) -> None:
    parser.description = "Finds the best way to split every layer over the devices."
    parser.add_argument("what", help="NAME.json beside NAME.npz, a network, or MODEL")
    parser.add_argument("--executable", action="store_true", help="MODEL: what DTensor can run")
    parser.add_argument("--execute", action="store_true", help="MODEL: run it, check it, time it")
    parser.add_argument("--rules", action="store_true", help="MODEL: DTensor's rules, op by op")
    parser.add_argument("--plan", default=None, help="--execute: this plan, not the best one here")
    parser.add_argument("--tables", default=None, help="write the cost tables, NAME.json")
    parser.add_argument("--steps", type=int, default=10, help="--execute: steps to time")
    parser.add_argument("--timeout", type=float, default=300.0, help="--execute: seconds at most")
    parser.add_argument("--devices", type=int, default=None, help="of a network; 8 by default")
    parser.add_argument("--exactly", action="store_true", help="a network's layers use all devices")
    parser.add_argument("--powers-of-two", action="store_true", help="a network's splits")
    parser.add_argument("--flops", type=float, default=10e12, help="FLOP/s of a device")
    parser.add_argument("--bandwidth", type=float, default=16e9, help="bytes/s of a link")
    parser.add_argument("--profile", action="store_true", help="for 1, 2, 4 … devices")
    parser.add_argument("--pareto", action="store_true", help="every trade of cost for memory")
    parser.add_argument("--epsilon", type=float, default=0.0, help="relative error of --pareto")
    parser.add_argument("--memory-limit", type=float, default=None, help="bytes, at most")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _output(parser, "--pareto: a picture of the frontier, .svg or .html", required=False)


def _hybrid(parser: ArgumentParser) -> None:
    parser.description = "How to use N devices: data-parallel groups of model-parallel devices."
    parser.add_argument("what", help="a model or a problem file")
    parser.add_argument("--cluster", default=None, help="default: a problem file's own")
    parser.add_argument("--devices", type=int, default=None, help="N; more: copies of the cluster")
    parser.add_argument("--most", type=int, default=8, help="devices of a group, at most")
    parser.add_argument("--placer", default="best")
    parser.add_argument("--batch", type=int, default=None, help="examples a step; problem files")
    parser.add_argument("--examples", type=int, default=None, help="in an epoch")
    parser.add_argument("--epochs-table", default=None, help="CSV or YAML: batch, epochs")
    parser.add_argument("--least-epochs", type=float, default=None, help="at small batches")
    what = "global batch that takes twice the least epochs"
    parser.add_argument("--critical-batch", type=float, default=None, help=what)
    what = "seconds of the network between copies of the cluster"
    parser.add_argument("--network-latency", type=float, default=10e-6, help=what)
    parser.add_argument("--network-bandwidth", type=float, default=10e9, help="bytes/s of it")
    parser.add_argument("--no-overlap", action="store_true", help="reduce after the backward pass")
    parser.add_argument("--execute", action="store_true", help="MODEL: run it for real")
    parser.add_argument("--replicas", type=int, default=2, help="--execute: data-parallel groups")
    parser.add_argument("--group-devices", type=int, default=1, help="--execute: devices of one")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _output(parser, "a plot of time against devices, .svg or .html", required=False)
    _search_options(parser)
    _capture_options(parser, listed=True)
    _run_options(parser, store=False)


def _store(parser: ArgumentParser) -> None:
    what = "SQLite file or SQLAlchemy URL of the measurements; $GNNPLACE_STORE by default; or none"
    parser.add_argument("--store", default=None, help=what)


def _measurements(parser: ArgumentParser) -> None:
    parser.description = (
        "Lists, exports (JSON lines) or forgets measured runs; fits a calibration to them."
    )
    parser.add_argument("action", help="list, export, prune or calibrate")
    _store(parser)
    parser.add_argument("--model", default=None, help="runs of this model alone")
    parser.add_argument("--fingerprint", default=None, help="of problems that begin so")
    parser.add_argument("--mode", default=None, help="measured or emulated")
    parser.add_argument("--run", default=None, help="whose name begins so")
    parser.add_argument("--before", default=None, help="begun before this date (UTC)")
    parser.add_argument("--failed", action="store_true", help="that failed or never ended")
    parser.add_argument("--limit", type=int, default=None, help="list, export: the newest N")
    parser.add_argument("--keep", type=int, default=0, help="prune: the newest N stay")
    parser.add_argument("--json", action="store_true", help="list: one JSON object a line")
    parser.add_argument("--clock", default="auto", help="calibrate: auto, wall or virtual")
    parser.add_argument("--seed", type=int, default=0, help="calibrate: of the parts")
    _output(parser, "export, calibrate: file; export: standard output", required=False)


def _fidelity(parser: ArgumentParser) -> None:
    parser.description = "Measures placements that differ, and how well they were predicted."
    parser.add_argument("model")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--placements", type=int, default=30, help="how many")
    parser.add_argument("--placers", default=PLACERS, help="comma-separated, among them")
    parser.add_argument("--rounds", type=int, default=6, help="how often each is measured")
    parser.add_argument("--clock", default="auto", help="auto (of the mode), wall or virtual")
    parser.add_argument("--stored", action="store_true", help="calibrate on earlier runs as well")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("-o", "--output", default="fidelity-output", help="folder")
    _search_options(parser)
    _capture_options(parser)
    _run_options(parser)


COMMANDS: dict[str, tuple[Callable[[ArgumentParser], None], str]] = {
    "demo": (_demo, "gnnplace.cli.demo"),
    "capture": (_capture, "gnnplace.cli.commands"),
    "profile": (_profile, "gnnplace.cli.commands"),
    "place": (_place, "gnnplace.cli.commands"),
    "simulate": (_simulate, "gnnplace.cli.commands"),
    "execute": (_execute, "gnnplace.cli.execute"),
    "compare": (_compare, "gnnplace.cli.commands"),
    "shard": (_shard, "gnnplace.cli.shard"),
    "convert": (_convert, "gnnplace.cli.commands"),
    "report": (_report, "gnnplace.cli.commands"),
    "bench": (_bench, "gnnplace.cli.bench"),
    "data": (_data, "gnnplace.data.build"),
    "study": (_study, "gnnplace.cli.study"),
    "fidelity": (_fidelity, "gnnplace.studies.fidelity"),
    "hybrid": (_hybrid, "gnnplace.cli.hybrid"),
    "measurements": (_measurements, "gnnplace.cli.measurements"),
}
