"""Epochs that training takes, as a function of the global batch.

Two models. ``CriticalBatch`` (McCandlish, Kaplan, Amodei et al., 2018, "An Empirical Model of
Large-Batch Training", arXiv 1812.06162): with S steps and E examples to a given loss,

    (S / S_min - 1) (E / E_min - 1) = 1,    B_crit = E_min / S_min

and ``E = S B`` gives ``E(B) = E_min (1 + B / B_crit)``: far below the critical batch the
epochs are constant, far above it they grow with the batch. ``EpochTable``: what was measured or is
given, linear in the logarithm of the batch between its rows; nothing is known beyond its last one,
and below its first one the epochs are taken to stay.

``PUBLISHED`` is what Pal et al. (2019, arXiv 1907.13257) say, to stand beside our own figures: for
Inception-V3, GNMT and BigLSTM "the hybrid strategy provides an end-to-end training speedup of at
least 26.5%, 8%, and 22% respectively compared to what DP alone can achieve at scale". Their
model-parallel workers are pairs of V100 GPUs, placed by DLPlacer or pipelined; their epochs by
batch were measured. Nothing else of theirs is used here.

Presets say what training needs besides a step, data set and convergence, by family of the zoo.
Every figure says where it comes from; ``assumed`` means that we chose it and nothing more. Give
``--examples`` and ``--epochs-table`` (or ``--least-epochs``, ``--critical-batch``) instead.

* images: 1,281,167 training images of ILSVRC 2012 (Russakovsky et al., 2015). 90 epochs are the
  schedule of Goyal et al. (2017, arXiv 1706.02677) for ResNet-50, which kept its accuracy up to a
  batch of 8,192; that the epochs double there is assumed, and that all image models are alike.
* translation: 4.5 million sentence pairs of WMT 2014 English-German (Vaswani et al., 2017, section
  5.1). Epochs and critical batch are assumed.
* language: One Billion Word, about 0.8 billion words (Jozefowicz et al., 2016, arXiv 1602.02410),
  in texts of 20 words, as their BigLSTM is unrolled. Epochs and critical batch are assumed.
* tokens (`make_token_preset`): each token once, the fewest those that are told, by default 20 for
  each parameter (Hoffmann et al., 2022, arXiv 2203.15556, table 3). The critical batch in tokens is
  that of Kaplan et al. (2020, arXiv 2001.08361, section 5.1), ``2.1e8 / L^(1/0.21)``, at the loss L
  that Hoffmann et al. (equation 10) predict for so many parameters N and tokens D,
  ``L = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28``: both fitted on other data than the user's.
* any: all assumed.
"""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np

from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_text, read_yaml

ASSUMED = "assumed"
GIVEN = "given"
TOKENS_OF_PARAMETER = 20
SOURCE = "Pal et al. 2019, arXiv 1907.13257, abstract"


class Convergence(ABC):
    """A model of the epochs that training takes, by global batch.

    Attributes:
        origin: The origin of its figures: ``assumed`` or ``given``.
        source: The origin in words.
    """

    origin: str
    source: str

    @abstractmethod
    def epochs(self, batch: float) -> float | None:
        """Return the epochs that training takes at a global batch, or None if nothing is known."""


@dataclass(frozen=True)
class CriticalBatch(Convergence):
    """The critical-batch-size model: E(B) = E_min (1 + B / B_crit).

    Attributes:
        least_epochs: E_min in epochs, at small batches.
        critical_batch: B_crit, examples: there twice the epochs are needed.
    """

    least_epochs: float
    critical_batch: float
    source: str = "the user's"
    origin: str = ASSUMED

    def __post_init__(self) -> None:
        for name in ("least_epochs", "critical_batch"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(
                    f"{name} {getattr(self, name)}: must be a positive number"
                )

    def epochs(self, batch: float) -> float:
        """Return E_min (1 + B / B_crit) for a global batch of B examples."""
        return self.least_epochs * (1.0 + batch / self.critical_batch)


@dataclass(frozen=True)
class EpochTable(Convergence):
    """Rows of (batch, epochs), by rising batch.

    Raises:
        InputError: If there is no row, a batch is repeated, or a number is not positive.
    """

    rows: tuple[tuple[float, float], ...]
    source: str = "the user's table"
    origin: str = GIVEN

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError(f"{self.source}: no rows of batch and epochs")
        for k, (batch, epochs) in enumerate(self.rows):
            if not (0 < batch < np.inf and 0 < epochs < np.inf):
                raise InputError(
                    f"{self.source}: row {k + 1}: batch and epochs must be positive"
                )
            if k and batch <= self.rows[k - 1][0]:
                raise InputError(f"{self.source}: row {k + 1}: batches must rise")

    def epochs(self, batch: float) -> float | None:
        """Interpolate the epochs linearly in log(batch) between rows.

        Returns:
            The first row's epochs below it, and None above the last row.
        """
        sizes, values = np.array(self.rows, dtype=np.float64).T
        if batch > sizes[-1] * (1 + 1e-12):
            return None
        return float(np.interp(np.log(batch), np.log(sizes), values))


def read_epochs(path: str | Path) -> EpochTable:
    """Read a table: CSV with the columns batch and epochs, or YAML (batch: epochs, or a list).

    Raises:
        FormatError: The message names the file and what is wrong.
    """
    yamlish = Path(path).suffix.lower() in (".yaml", ".yml")
    if yamlish:
        read = partial(_from_yaml, read_yaml(path))
    else:
        read = partial(_from_csv, read_text(path))
    try:
        return EpochTable(tuple(sorted(read())), str(path))
    except (csv.Error, KeyError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise FormatError(
            f"{path}: must have rows of batch and epochs: {reason}"
        ) from None


def _from_csv(text: str) -> list[tuple[float, float]]:
    lines = [
        line for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    reader = csv.DictReader(StringIO("\n".join(lines)), skipinitialspace=True)
    if not {"batch", "epochs"} <= set(reader.fieldnames or ()):
        raise ValueError("the first line must name the columns batch and epochs")
    return [(float(row["batch"]), float(row["epochs"])) for row in reader]


def _from_yaml(data: object) -> list[tuple[float, float]]:
    if isinstance(data, dict):
        return [(float(batch), float(epochs)) for batch, epochs in data.items()]
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [(float(row["batch"]), float(row["epochs"])) for row in data]
    raise ValueError("a mapping of batch to epochs, or a list of both, is needed")


@dataclass(frozen=True)
class PublishedGain:
    """A published speed-up of hybrid training over data parallelism alone at scale, minus one.

    Attributes:
        model: The model's name in the publication.
        gain: The gain, at least.
        ours: Workloads and profiles of ours that stand for it.
    """

    model: str
    gain: float
    ours: tuple[str, ...]


PUBLISHED = (
    PublishedGain("Inception-V3", 0.265, ("inception", "inception_v3")),
    PublishedGain("GNMT", 0.08, ("gnmt",)),
    PublishedGain("BigLSTM", 0.22, ("big_lstm",)),
)


def find_published_gain(model: str) -> PublishedGain | None:
    """Return the published gain of a zoo model, or None if there is none."""
    name = model.partition("?")[0].removeprefix("zoo:")
    return next((row for row in PUBLISHED if name in row.ours), None)


@dataclass(frozen=True)
class Preset:
    """A data set and how training on it converges.

    Attributes:
        name: The name of the family.
        examples: The number of examples in an epoch.
        examples_source: The source of the number of examples.
        convergence: The epochs that training takes, by global batch.
    """

    name: str
    examples: int
    examples_source: str
    convergence: CriticalBatch


PRESETS = {
    "images": Preset(
        "images",
        1_281_167,
        "ILSVRC 2012, Russakovsky et al. 2015",
        CriticalBatch(
            90.0, 8_192.0, "90 epochs: Goyal et al. 2017; critical batch: assumed"
        ),
    ),
    "translation": Preset(
        "translation",
        4_500_000,
        "WMT 2014 English-German, Vaswani et al. 2017",
        CriticalBatch(6.0, 4_096.0, "assumed"),
    ),
    "language": Preset(
        "language",
        40_000_000,
        "One Billion Word in texts of 20 words, Jozefowicz et al. 2016",
        CriticalBatch(5.0, 4_096.0, "assumed"),
    ),
    "any": Preset("any", 1_000_000, "assumed", CriticalBatch(10.0, 4_096.0, "assumed")),
}


def make_token_preset(
    parameters: int, length: int, tokens: float | None = None
) -> Preset:
    """Return how a language model converges that sees every token once.

    Args:
        parameters: The number of parameters of the model.
        length: Tokens of an example.
        tokens: Tokens that training needs at small batches; None: `TOKENS_OF_PARAMETER` for each
            parameter.
    """
    origin = "given"
    if tokens is None:
        tokens = TOKENS_OF_PARAMETER * parameters
        origin = f"{TOKENS_OF_PARAMETER} tokens a parameter, Hoffmann et al. 2022"
    loss = 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28
    critical = 2.1e8 / loss ** (1 / 0.21)
    source = f"critical batch of {critical / 1e6:.2g}M tokens: Kaplan et al. 2020 at a loss of "
    source += f"{loss:.2f} by Hoffmann et al. 2022"
    examples = max(1, round(tokens / length))
    return Preset(
        "tokens", examples, origin, CriticalBatch(1.0, critical / length, source)
    )


FAMILIES = {
    "images": (
        "inception,inception_v3,resnet50,resnext50,small_resnet,densenet,densenet121,nasnet,"
        "nasnetamobile,searched_cnn,vit,vgg16,alexnet"
    ),
    "translation": "gnmt,seq2seq",
    "language": "rnn_lm,searched_rnn,big_lstm",
}


def find_preset(
    model: str,
    parameters: int | None = None,
    length: int | None = None,
    tokens: float | None = None,
) -> Preset:
    """Return how a model converges: as its family, as a language model, or as ``any``.

    Args:
        model: Its zoo or profile name.
        parameters: The number of its parameters, if that is known.
        length: Tokens of an example; None: examples are no rows of tokens.
        tokens: Tokens that training needs at small batches; None: `make_token_preset` says it.

    Raises:
        InputError: If tokens are said of a model whose examples are none.
    """
    name = model.partition("?")[0].removeprefix("zoo:")
    for family, members in FAMILIES.items():
        if name in members.split(",") and tokens is None:
            return PRESETS[family]
    if parameters is not None and length is not None:
        return make_token_preset(parameters, length, tokens)
    if tokens is not None:
        raise InputError(
            f"--tokens: the examples of {model} are no rows of tokens; give --examples"
        )
    return PRESETS["any"]


@dataclass(frozen=True)
class Training:
    """The training that a study is about: its batch, its data set and its convergence.

    Attributes:
        batch: Examples of a step of one group.
        examples: The number of examples in an epoch.
        convergence: Epochs by global batch.
    """

    batch: int
    examples: int
    convergence: Convergence

    def __post_init__(self) -> None:
        for name in ("batch", "examples"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} {getattr(self, name)}: must be a positive number"
                )

    def steps(self, batch: int) -> int:
        """Return the steps of an epoch with a global batch."""
        return math.ceil(self.examples / batch)


@dataclass(frozen=True)
class ConvergenceOptions:
    """Figures of a training that stand for a preset's.

    Attributes:
        examples: Examples in an epoch; None: the preset's.
        epochs_table: CSV or YAML file of epochs by batch.
        least_epochs: Epochs that training takes at small batches.
        critical_batch: Global batch that takes twice the least epochs.

    Raises:
        InputError: If a table is given beside the figures that it stands for.
    """

    examples: int | None = None
    epochs_table: str | None = None
    least_epochs: float | None = None
    critical_batch: float | None = None

    def __post_init__(self) -> None:
        if self.epochs_table and (self.least_epochs, self.critical_batch) != (
            None,
            None,
        ):
            raise InputError(
                "--epochs-table: stands for --least-epochs and --critical-batch"
            )


def make_training(preset: Preset, options: ConvergenceOptions, batch: int) -> Training:
    """Return what is trained, from a preset and the options that stand for its figures.

    Args:
        preset: The data set, and how training on it converges.
        options: Options, of which examples, table of epochs, least epochs and critical batch count.
        batch: Examples of a step.

    Raises:
        FormatError: If the table of epochs cannot be read.
        InputError: If a figure is not positive.
    """
    convergence: Convergence = preset.convergence
    if options.epochs_table is not None:
        convergence = read_epochs(options.epochs_table)
    else:
        by_name = {
            name: getattr(options, name) for name in ("least_epochs", "critical_batch")
        }
        named = {name: value for name, value in by_name.items() if value is not None}
        if named:
            origin = "the command line's, the rest assumed"
            convergence = replace(preset.convergence, source=origin, **named)
    if options.examples is None:
        examples = preset.examples
    else:
        examples = options.examples
    return Training(batch, examples, convergence)
