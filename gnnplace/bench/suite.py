"""Suites: YAML files that name problems, placers, seeds and budgets.

::

    name: smoke
    problems:
      - {family: layered, seed: 1}                        # a random family
      - {model: inception, cluster: pcie-t4-4, microbatches: 4}
      - {profile: nets/vgg16.txt, format: pipedream, cluster: pcie-v100-4}
      - {file: my-problem.json}
    placers: [single, heft, contiguous, learned, best]
    seeds: [0]
    budgets: [0.0, 1.0]       # seconds; equal for all placers
    timeout: 60.0             # seconds a cell may take before it counts as a failure
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, model_validator

from gnnplace import api
from gnnplace.errors import FormatError
from gnnplace.files import Schema, parse, read_text
from gnnplace.microbatching import with_microbatches
from gnnplace.problem import Problem, read_problem
from gnnplace.zoo.random_families import random_problem

NonNegative = Annotated[float, Field(ge=0)]
SOURCES = ("family", "model", "profile", "file")


class ProblemEntry(Schema):
    """One problem of a suite: exactly one of ``family``, ``model``, ``profile``, ``file``."""

    family: str | None = None
    model: str | None = None
    profile: str | None = None
    file: str | None = None
    seed: int = 0
    cluster: str | None = None
    microbatches: Annotated[int, Field(ge=1)] = 1
    groups: Annotated[int, Field(ge=1)] = 200
    format: str = "pipedream"

    @model_validator(mode="after")
    def _one_source(self) -> ProblemEntry:
        if sum(getattr(self, key) is not None for key in SOURCES) != 1:
            raise ValueError(f"give exactly one of {', '.join(SOURCES)}")
        return self

    @property
    def key(self) -> str:
        """A name that tells the problem from all others of the suite."""
        source = next(key for key in SOURCES if getattr(self, key) is not None)
        parts = [f"{source}={getattr(self, source)}"]
        defaults = ProblemEntry.model_fields
        for key in ("seed", "cluster", "microbatches", "groups"):
            if getattr(self, key) != defaults[key].default:
                parts.append(f"{key}={getattr(self, key)}")
        return " ".join(parts)

    def load(self, folder: Path) -> Problem:
        """Builds, captures or reads the problem; files are relative to ``folder``."""
        if self.model is not None:
            options = api.CaptureOptions(groups=self.groups, microbatches=self.microbatches)
            return api.profile(self.model, self.cluster or "auto", options=options)
        if self.family is not None:
            problem = random_problem(self.family, self.seed)
        elif self.profile is not None:
            cluster = api.resolve_cluster(self.cluster) if self.cluster else None
            problem = api.convert(folder / self.profile, self.format, cluster)
        else:
            problem = read_problem(folder / str(self.file))
        return problem if self.microbatches == 1 else with_microbatches(problem, self.microbatches)


class SuiteFile(Schema):
    """The keys of a suite file."""

    name: Annotated[str, Field(min_length=1)]
    problems: Annotated[list[ProblemEntry], Field(min_length=1)]
    placers: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    budgets: Annotated[list[NonNegative], Field(min_length=1)] = [0.0]
    timeout: Annotated[float, Field(gt=0)] = 60.0


@dataclass(frozen=True)
class Cell:
    """One thing to run: a placer on a problem with a seed and a budget."""

    problem: ProblemEntry
    placer: str
    seed: int
    budget: float

    def identity(self) -> dict[str, Any]:
        """What tells this cell from all others of the suite."""
        return {
            "problem": self.problem.key,
            "placer": self.placer,
            "seed": self.seed,
            "budget": self.budget,
        }


def read_suite(path: str | Path) -> SuiteFile:
    """Reads a suite file.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    try:
        data = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        where = str(getattr(error, "problem_mark", "")).strip()
        raise FormatError(f"{path}: not YAML: {' '.join(where.split())}") from None
    return parse(SuiteFile, data, str(path))


def cells(suite: SuiteFile) -> list[Cell]:
    """All cells, problem by problem."""
    return [
        Cell(problem, placer, seed, budget)
        for problem in suite.problems
        for placer in suite.placers
        for seed in suite.seeds
        for budget in suite.budgets
    ]
