"""Single changes: a plan with one of its words changed, whatever its prices come from."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from gnnplace.plans import WORDS, PlanAnswer, PlanSpec, PricingSetting, list_own_modules

RECOMPUTED = ("none", "selective", "full")
OVERLAPS = ("reduce", "reduce+gather")
DEGREES = "degrees"
"""The word of a change of two numbers of devices, one doubled and one halved."""


@dataclass(frozen=True)
class PlanChange:
    """A plan with one word changed, and its price.

    Attributes:
        text: The change in a few words.
        answer: The price.
    """

    text: str
    answer: PlanAnswer

    @property
    def step_time(self) -> float:
        """Return the predicted seconds of a step."""
        assert self.answer.step_time is not None
        return self.answer.step_time


class SingleChange(NamedTuple):
    """A change of one word, not priced.

    Attributes:
        word: The word that changes, or `DEGREES`.
        text: The change in a few words.
        spec: The changed plan.
    """

    word: str
    text: str
    spec: PlanSpec


@dataclass(frozen=True)
class WordChoices:
    """The values that the words of a plan may have where it is priced.

    Attributes:
        zero_stages: ZeRO stages.
        schedules: Schedules of plans with several stages.
        degrees: Words whose product is the number of devices, which one may double and another
            halve.
        splits_tokens: Whether tokens may be split between the products of layers, or not.
        cuda_graphs: What may be captured as CUDA graphs.
        compiles: Whether layers may be compiled.
        overlaps: Exchanges of replicas that may be hidden.
        overlaps_shards: Whether exchanges of shards may be hidden.
        regathers: Whether shards may gather their inputs again.
        cuts_evenly: Whether stages may be cut as evenly as can be.
        splits_freely: Whether layers may be split over shards in any way.
        recomputed: Values of the word `recompute`.
    """

    zero_stages: tuple[int, ...] = ()
    schedules: tuple[str, ...] = ()
    degrees: tuple[str, ...] = ("dp", "tp", "pp")
    splits_tokens: bool = True
    cuda_graphs: tuple[str, ...] = ()
    compiles: bool = False
    overlaps: tuple[str, ...] = ()
    overlaps_shards: bool = False
    regathers: bool = False
    cuts_evenly: bool = False
    splits_freely: bool = False
    recomputed: tuple[str, ...] = RECOMPUTED


def list_choices(setting: PricingSetting) -> WordChoices:
    """Return the values that words may have under a framework that prices by sizes."""
    traits = setting.framework.traits
    modules: tuple[str, ...] = ()
    if traits.recomputes_modules:  # attention alone is "selective"
        _, *names = list_own_modules(setting.decoder)
        modules = tuple(f"modules:{name}" for name in names)
    return WordChoices(
        zero_stages=traits.zero_stages,
        schedules=("1f1b", "interleaved:2", "interleaved:4"),
        cuda_graphs=traits.cuda_graphs,
        compiles=traits.compiles,
        overlaps=OVERLAPS,
        overlaps_shards=traits.overlaps_shards,
        recomputed=RECOMPUTED + modules,
    )


def single_changes(spec: PlanSpec, choices: WordChoices) -> Iterator[SingleChange]:
    """Yield a plan with each of its words changed. A word may keep its value.

    Args:
        spec: The plan.
        choices: The values that its words may have.
    """
    for word, value in _word_values(spec, choices):
        words: dict[str, Hashable] = {word: value}
        if word == "zero" and not value:
            words["zero_group"] = None
        if word == "schedule":
            words["layers"] = None
        text = f"{word}={WORDS[word].write(value)}"
        yield SingleChange(word, text, spec.with_words(**words))
    # Changes that no single value says.
    if choices.cuts_evenly:
        text = "stages that are as even as can be (without layers=)"
        yield SingleChange("layers", text, spec.with_words(layers=None))
    if choices.splits_freely:
        text = "the fastest split of layers that fits (shards=N)"
        yield SingleChange("shards", text, spec)
    counts = {name: getattr(spec, name) or 1 for name in choices.degrees}
    for text, degrees in iterate_moved_degrees(counts):
        yield SingleChange(DEGREES, text, spec.with_words(**degrees, layers=None))


def _word_values(
    spec: PlanSpec, choices: WordChoices
) -> Iterator[tuple[str, Hashable]]:
    """Yield the words that may change, with each value of theirs; see `single_changes`."""
    sizes = [spec.microbatch_size * 2, spec.microbatch_size // 2]
    hides_shards = choices.overlaps_shards and spec.tp > 1 and spec.splits_tokens
    values: dict[str, Sequence[Hashable]] = {
        "microbatch_size": [size for size in sizes if size],
        "zero": choices.zero_stages,
        "recompute": choices.recomputed,
        "sp": [not spec.splits_tokens] if choices.splits_tokens else [],
        "regather": [not spec.regather] if choices.regathers else [],
        "cuda_graphs": choices.cuda_graphs,
        "compile": [True] if choices.compiles else [],
        "overlap": choices.overlaps,
        "tp_overlap": [True] if hides_shards else [],
        "schedule": choices.schedules if spec.pp > 1 else [],
    }
    for word, word_values in values.items():
        for value in word_values:
            yield word, value


def iterate_moved_degrees(
    count: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the degrees with one doubled and another halved, so that the product stays.

    Yields:
        The change in words, and the new degrees.
    """
    for raised, lowered in permutations(count, 2):
        if count[lowered] % 2 == 0:
            changed = {**count, raised: count[raised] * 2, lowered: count[lowered] // 2}
            yield (
                f"{raised}={changed[raised]} and {lowered}={changed[lowered]}",
                changed,
            )
