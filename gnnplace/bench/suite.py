"""Suites: YAML files that name problems, placers, seeds and budgets.

``read_suite`` reads one, ``cells`` lists its runs, and ``ProblemEntry.load`` makes a problem. All
keys, with what they mean::

    name: smoke
    version: 1                # raised when a problem changes; rows say smoke@1, never mixed
    problems:
      - {family: layered, seed: 1, ops: [100, 300]}       # a random family
      - {captured: bert-base, seed: 1, groups: 200, microbatches: 4, memory: tight}
      - {dataset: searched-cnn, graph: searched-cnn-07, cluster: nvlink-v100-4, microbatches: 4}
      - {family: erdos-renyi, seed: 2, ccr: 0.5, heterogeneity: 3.0, cluster: mixed}
      - {model: inception, cluster: pcie-t4-4, microbatches: 4}
      - {profile: nets/vgg16.txt, format: pipedream, cluster: pcie-v100-4}
      - {file: my-problem.json, family: mine, constraints: {pin: {"layers.0": "gpu:0"}}}
    constructions: [single, heft, contiguous]   # run once: first seed, budget 0
    placers: [annealing, learned, best]         # run with all seeds and budgets
    seeds: [0]
    budgets: [0.0, 1.0]       # seconds; equal for all placers
    steps: [10000]            # budgets in simulated steps: rows that repeat bit by bit
    methods: {exact: {budgets: [10.0], seeds: [0]}}   # instead, of single placers
    timeout: 60.0             # seconds a cell may take before it counts as a failure
    kind: place               # or execute, joint (``kinds``)
    mode: auto                # of executions: measured, emulated, or by the cores there are
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from gnnplace.bench.rows import SECONDS, STEPS
from gnnplace.costs import resolve_cluster
from gnnplace.errors import InputError
from gnnplace.files import Schema, parse, read_yaml
from gnnplace.problem import (
    Problem,
    apply_constraints,
    as_constraints,
    convert,
    limit_memory,
    read_problem,
    with_microbatches,
)
from gnnplace.train import (
    CLUSTERS,
    MOST_OPS,
    RECIPES,
    SHIPPED_FOLDERS,
    STORE,
    CapturedDraws,
    CapturedGraph,
    RandomDraws,
    dataset_problem,
    draw_captured_problem,
    find_dataset,
    how_to_collect,
    open_shipped_store,
    random_problem,
)

if TYPE_CHECKING:
    from gnnplace.tracing import CaptureOptions

FAMILY_OF = {
    model.name: model.family
    for recipe in (STORE, *RECIPES.values())
    for model in recipe.models
}
"""The family of each captured model, by the model's name."""
NonNegative = Annotated[float, Field(ge=0)]
Steps = Annotated[int, Field(ge=1)]
# A checkout has the suites beside the package, a wheel has them inside it.
SUITE_FOLDERS = (
    Path(__file__).parents[2] / "benchmarks" / "suites",
    Path(__file__).parent / "suites",
)
DATA_SETS = "data_sets"  # a path that begins so may be of a file in the package
PLACE: Final = "place"
EXECUTE: Final = "execute"
JOINT: Final = "joint"
SOURCES = ("family", "captured", "dataset", "model", "profile", "file")
"""Keys of an entry that say where its problem comes from. An entry has one of them."""
FILES = ("profile", "file")  # sources beside which a family is a label
COMPUTED = ("family", "captured", "model")  # sources whose costs no file has
Pair = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]


class ProblemEntry(Schema):
    """One problem of a suite. It has exactly one of ``SOURCES``; a file may also have a family.

    Attributes:
        family: A random family to draw from. Beside a problem or profile file, the family that
            its graph belongs to, which tables show.
        captured: A graph of the shipped store.
        dataset: A dataset by its name (``gnnplace.train.data.datasets.find_dataset``).
        graph: The graph of the dataset.
        model: A model to capture and profile.
        profile: A file of ``format``.
        file: A problem file.
        seed: The seed of a family's or captured graph's draw.
        cluster: With a family or a captured graph, the type of cluster to draw; otherwise a
            preset, as ``compare`` takes it. A dataset's graph needs one. A problem file has its own
            cluster, and this is the name that tables give it.
        microbatches: Number of micro-batches that the batch is cut into; a family draws its own.
        accept_other_loss: Whether a model's batch is cut even where that changes its loss.
        groups: Number of ops to group the graph to (captured, dataset, model).
        whole: Whether the captured graph is left as it is, not grouped.
        memory: The memory of a captured graph's devices, ``ample`` or ``tight``.
        ccr: The communication-to-computation ratio of a random family, instead of a drawn one.
        heterogeneity: The heterogeneity of a random family, instead of a drawn one.
        ops: Smallest and largest number of ops of a family's problem, before micro-batches.
        devices: Smallest and largest number of devices to draw.
        seen: Ignored; old suites have it. A placer's training card says which problems it has seen.
        constraints: Pins, forbids, modules that stay together and headroom, as a constraints file
            has them. ``max_devices`` is refused.
    """

    family: str | None = None
    captured: str | None = None
    dataset: str | None = None
    model: str | None = None
    profile: str | None = None
    file: str | None = None
    graph: str | None = None
    seed: int = 0
    cluster: str | None = None
    microbatches: Annotated[int, Field(ge=1)] = 1
    accept_other_loss: bool = False
    groups: Annotated[int, Field(ge=1)] = 200
    whole: bool = False
    memory: str = "ample"
    ops: Annotated[Pair, Field(strict=False)] = (40, 260)
    devices: Annotated[Pair, Field(strict=False)] = (2, 8)
    ccr: Annotated[float | None, Field(gt=0)] = None
    heterogeneity: Annotated[float | None, Field(ge=1)] = None
    format: str = "pipedream"
    seen: bool = False
    constraints: dict[str, Any] = {}

    @property
    def is_computed(self) -> bool:
        """Return whether costs are computed when the problem is made, not read from a file."""
        return self._list_sources()[0] in COMPUTED

    @model_validator(mode="after")
    def _check_source(self) -> ProblemEntry:
        if len(self._list_sources()) != 1:
            raise ValueError(f"give exactly one of {', '.join(SOURCES)}")
        if self.dataset is not None and (self.graph is None or self.cluster is None):
            raise ValueError("a dataset needs a graph and a cluster")
        if as_constraints(self.constraints).max_devices is not None:
            raise ValueError(
                "constraints: a suite takes no max_devices; give a smaller cluster"
            )
        return self

    def _list_sources(self) -> list[str]:
        """Return the sources that are given. The family of a file is a label and no source."""
        sources = [key for key in SOURCES if getattr(self, key) is not None]
        if any(key in FILES for key in sources):
            return [key for key in sources if key != "family"]
        return sources

    @property
    def key(self) -> str:
        """Return a name that tells the problem from all others of the suite."""
        (source,) = self._list_sources()
        parts = [f"{source}={getattr(self, source)}"]
        for key, field in ProblemEntry.model_fields.items():
            value = getattr(self, key)
            # Keys at their defaults are left out, so that a new key changes no old name.
            if key in (*SOURCES, "format", "seen") or value == field.default:
                continue
            if isinstance(value, tuple):
                text = "-".join(map(str, value))
            elif isinstance(value, dict):
                text = json.dumps(value)
            else:
                text = str(value)
            parts.append(f"{key}={text}")
        return " ".join(parts)

    @property
    def labels(self) -> dict[str, str]:
        """Return family and cluster, which standings are broken down by."""
        captured_graph = self.captured or self.graph
        if captured_graph is not None:
            family = FAMILY_OF.get(captured_graph, captured_graph)
        else:
            # What follows a "?" are a model's settings.
            name = self.family or self.model or self.profile or self.file
            family = str(name).partition("?")[0]
        return {"family": family, "cluster": self.cluster or "drawn"}

    def find_captured_graph(self, folder: Path = Path()) -> CapturedGraph | None:
        """Return the captured graph that the problem is made from; None if there is none.

        Raises:
            InputError: There is no such graph or dataset.
        """
        if self.captured is not None:
            return open_shipped_store().graph(self.captured)
        if self.dataset is not None:
            return find_dataset(self.dataset, folder).graph(str(self.graph))
        return None

    def load(self, folder: Path = Path()) -> Problem:
        """Build, capture or read the problem; files are relative to ``folder``.

        Raises:
            InputError: The source is not valid.
        """
        constraints = as_constraints(self.constraints)
        if self.model is not None:
            # Its modules are constrained when it is captured; memory is left to limit.
            return limit_memory(self._profile_model(self.model), constraints)
        return apply_constraints(self._load_unconstrained(folder), constraints)

    def _load_unconstrained(self, folder: Path) -> Problem:
        """Return the problem of any source but a model, cut into micro-batches."""
        if self.captured is not None:
            return self._draw_captured(self.captured)
        if self.dataset is not None:
            return dataset_problem(
                find_dataset(self.dataset, folder).graph(str(self.graph)),
                resolve_cluster(str(self.cluster)),
                microbatches=self.microbatches,
                groups=None if self.whole else self.groups,
                memory=self.memory,
            )
        problem = self._load_whole_batch(folder)
        if self.microbatches == 1:
            return problem
        return with_microbatches(problem, self.microbatches)

    def _profile_model(self, model: str) -> Problem:
        # Imported late: a suite without models needs no torch.
        from gnnplace.costs import profile_model

        return profile_model(
            model, self.cluster or "auto", options=self.capture_options()
        )

    def capture_options(self) -> CaptureOptions:
        """Return the capture options of a suite's model."""
        from gnnplace.tracing import CaptureOptions

        return CaptureOptions(
            groups=self.groups,
            microbatches=self.microbatches,
            accept_other_loss=self.accept_other_loss,
            constraints=as_constraints(self.constraints).patterns,
        )

    def _draw_captured(self, name: str) -> Problem:
        """Return a graph of the shipped store on a cluster that the seed draws."""
        return draw_captured_problem(
            open_shipped_store(),
            name,
            self.seed,
            CapturedDraws(
                groups=None if self.whole else (self.groups, self.groups),
                clusters=(self.cluster,) if self.cluster else CLUSTERS,
                devices=self.devices,
                microbatches=(self.microbatches,),
                memory=(self.memory,),
            ),
        )

    def _load_whole_batch(self, folder: Path) -> Problem:
        """Return the problem of a random family or a file, before micro-batches."""
        if self._list_sources() == ["family"]:
            return random_problem(
                str(self.family),
                self.seed,
                RandomDraws(
                    ops=self.ops,
                    devices=self.devices,
                    clusters=(self.cluster,) if self.cluster else CLUSTERS,
                    most_ops=max(MOST_OPS, *self.ops),
                    ccr=self.ccr,
                    heterogeneity=self.heterogeneity,
                ),
            )
        if self.profile is not None:
            if self.cluster:
                cluster = resolve_cluster(self.cluster)
            else:
                cluster = None
            return convert(data_file(self.profile, folder), self.format, cluster)
        return read_problem(data_file(str(self.file), folder))


class Method(Schema):
    """Seeds and budgets of one placer, used instead of the suite's. None means the suite's."""

    seeds: Annotated[list[int] | None, Field(min_length=1)] = None
    budgets: list[NonNegative] | None = None
    steps: list[Steps] | None = None


def check_suite_name(name: str) -> str:
    """Check a suite's name, which the file name of its rows contains, and return it.

    Raises:
        ValueError: The name cannot be printed, begins with a dot, contains an "@" (which separates
            name and version), or a slash (which would lead out of the folder).
    """
    if (
        not name.isprintable()
        or name.startswith(".")
        or any(sign in name for sign in "@/\\")
    ):
        raise ValueError(
            f"{name!r} names the file of rows: leave out '@', '/' and '\\', and do not begin with "
            "a dot"
        )
    return name


class SuiteFile(Schema):
    """A suite file; the text of this module says what each key means."""

    name: Annotated[str, Field(min_length=1), AfterValidator(check_suite_name)]
    version: Annotated[int, Field(ge=1)] = 1
    problems: Annotated[list[ProblemEntry], Field(min_length=1)]
    placers: list[str] = []
    constructions: list[str] = []
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    budgets: list[NonNegative] = [0.0]
    steps: list[Steps] = []
    methods: dict[str, Method] = {}
    timeout: Annotated[float, Field(gt=0)] = 60.0
    kind: Literal["place", "execute", "joint"] = PLACE
    mode: Literal["auto", "measured", "emulated"] = "auto"

    @property
    def title(self) -> str:
        """Return name and version as rows show them: ``standard@1``."""
        return f"{self.name}@{self.version}"

    @model_validator(mode="after")
    def _check_placers_and_budgets(self) -> SuiteFile:
        if not self.placers and not self.constructions:
            raise ValueError("give placers, constructions or both")
        if not self.budgets and not self.steps:
            raise ValueError("give budgets, steps or both")
        if unknown := [name for name in self.methods if name not in self.placers]:
            raise ValueError(f"methods: {unknown[0]!r} is not among the placers")
        return self

    @model_validator(mode="after")
    def _check_kind(self) -> SuiteFile:
        for i, problem in enumerate(self.problems):
            if self.kind in (EXECUTE, JOINT) and problem.model is None:
                raise ValueError(f"problems[{i}]: kind {self.kind} needs models")
        return self


@dataclass(frozen=True)
class Cell:
    """One thing to run: a placer on a problem with a seed and a budget.

    Attributes:
        problem: The problem to place.
        placer: The name of the placer.
        seed: The seed of all randomness.
        budget: Seconds or simulated steps that the placer may search.
        unit: The unit of the budget: ``SECONDS`` or ``STEPS``.
    """

    problem: ProblemEntry
    placer: str
    seed: int
    budget: float
    unit: str = SECONDS

    def identity(self) -> dict[str, Any]:
        """Return the values that tell this cell from all others of the suite."""
        return {
            "problem": self.problem.key,
            "placer": self.placer,
            "seed": self.seed,
            "budget": self.budget,
            "unit": self.unit,
        }


def data_file(path: str, folder: Path) -> Path:
    """Return the path of a file that a suite names.

    It is relative to the suite's folder. A path that begins with ``data_sets/`` and is not there is
    looked up in the working directory, then among the data sets of the package.

    Raises:
        InputError: The data set does not come with the package and was not collected; the message
            has the commands that collect it from a clone of the repository.
    """
    if (folder / path).is_file() or not path.startswith(f"{DATA_SETS}/"):
        return folder / path
    path_in_data_sets = path.removeprefix(f"{DATA_SETS}/")
    candidates = [Path(path)]
    candidates += [shipped / path_in_data_sets for shipped in SHIPPED_FOLDERS]
    for file in candidates:
        if file.is_file():
            return file
    commands = how_to_collect(Path(path).parent)
    if commands is not None:
        raise InputError(f"{path}: does not come with the package; {commands}")
    return folder / path


def suite_path(name: str) -> Path | None:
    """Return the file of a suite that comes with the repository or the package, or None."""
    for folder in SUITE_FOLDERS:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
    return None


def suite_names() -> list[str]:
    """Return the names of the suites that come with the repository or the package."""
    folder = next((folder for folder in SUITE_FOLDERS if folder.is_dir()), None)
    if folder is None:
        return []
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_suite(path: str | Path) -> SuiteFile:
    """Read a suite file.

    Raises:
        FormatError: The file is malformed; the message names the file, the key and the fault.
    """
    return parse(SuiteFile, read_yaml(path), str(path))


def cells(suite: SuiteFile) -> list[Cell]:
    """Return all cells of a suite, problem by problem."""
    # A construction has no search, so that one seed and no budget are enough.
    constructions = [
        (name, suite.seeds[0], 0.0, SECONDS) for name in suite.constructions
    ]
    # A placer runs with each of its seeds and each of its budgets.
    searches = []
    for name in suite.placers:
        method = suite.methods.get(name, Method())
        if method.budgets is None:
            seconds = suite.budgets
        else:
            seconds = method.budgets
        budgets = [(budget, SECONDS) for budget in seconds]
        if method.steps is None:
            steps = suite.steps
        else:
            steps = method.steps
        budgets += [(float(number), STEPS) for number in steps]
        seeds = method.seeds or suite.seeds
        searches += [(name, seed, *budget) for seed, budget in product(seeds, budgets)]
    return [
        Cell(problem, *run)
        for problem in suite.problems
        for run in (*constructions, *searches)
    ]
