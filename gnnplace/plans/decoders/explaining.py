"""What bounds a step that is priced from a decoder's sizes, and which single word would help most.

The step is priced again without one thing after the other; what each takes away is its part, in
seconds that are not hidden behind something else: checks of collectives, the host's launches,
messages between stages, exchanges of replicas, exchanges of shards, what is computed again. Of the
rest the busiest rank's work is `compute`, and the optimizer's step `update`; what is left are
bubbles. Replicas and shards share one network, so that replicas are told apart by a step of one
replica with as many micro-batches: what they exchange is how much longer their step is than that
one, less the same on a network that takes nothing. Parts add up to the step.

Complexity: twelve prices, and one a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from gnnplace.costs.frameworks.constants import ConstantSet
from gnnplace.costs.network import ServerNetwork
from gnnplace.plans.decoders.pricing import PlanAnswer, price
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.decoders.step import cut_of, step_time
from gnnplace.plans.decoders.words import GivenWords

ROW_PARTS = {
    "compute": "kernels of the busiest rank",
    "checks": "collectives that are checked",
    "host": "launches that kernels wait for",
    "messages": "messages between stages",
    "replicas": "exchanges of replicas: gradients, ZeRO",
    "shards": "exchanges of shards inside of stages",
    "recompute": "what is recomputed",
    "update": "the optimizer's step",
    "bubble": "waits for other stages",
}
HOST = ("host_layer", "host_layer_shards", "host_pass", "host_message", "host_update")


class IdleNetwork(ServerNetwork):
    """A network that takes nothing."""

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """No seconds."""
        return 0.0

    def reduce(self, count: int, size: float, members: int) -> float:
        """No seconds."""
        return 0.0

    def message(self, size: float, across: bool) -> float:
        """No seconds."""
        return 0.0


class SilentNetwork(ServerNetwork):
    """A network whose messages between stages take nothing."""

    def message(self, size: float, across: bool) -> float:
        """No seconds."""
        return 0.0


@dataclass(frozen=True)
class RowChange:
    """A plan with one word changed, which fits.

    Attributes:
        told: the change, in a few words.
        answer: what it takes.
    """

    told: str
    answer: PlanAnswer


def row_parts(setting: PricingSetting, words: GivenWords) -> dict[str, float]:
    """Seconds of a step by what they go to; they add up to it.

    Raises:
        InputError: the layers cannot be cut so.
    """
    cut = cut_of(setting, words)
    batch = words.batch or setting.decoder.batch
    alone = replace(words, dp=1, zero=0, batch=batch // words.dp)
    plain = replace(words, recompute="none")
    found = dict.fromkeys(ROW_PARTS, 0.0)

    def seconds(own: PricingSetting, told: GivenWords) -> float:
        return step_time(own, told, cut)

    whole = seconds(setting, words)
    bare = replace(setting, checks=None)
    found["checks"] = whole - seconds(bare, words)
    free = replace(bare, constants=_zero(bare.constants, HOST))
    found["host"] = seconds(bare, words) - seconds(free, words)
    silent = replace(free, constants=_zero(free.constants, ("message_latency",)),
                     network=_as(SilentNetwork, free.network))  # fmt: skip
    found["messages"] = seconds(free, words) - seconds(silent, words)
    idle = replace(silent, network=_as(IdleNetwork, free.network))
    exchanged = seconds(silent, words) - seconds(idle, words)
    found["replicas"] = exchanged - (seconds(silent, alone) - seconds(idle, alone))
    found["shards"] = exchanged - found["replicas"]
    found["recompute"] = seconds(idle, words) - seconds(idle, plain)
    single = replace(plain, batch=words.dp * words.microbatch_size)
    double = replace(plain, batch=2 * words.dp * words.microbatch_size)
    each = seconds(idle, double) - seconds(idle, single)  # of the busiest rank, a micro-batch
    chunks = words.chunks
    finer = replace(single, schedule=f"interleaved:{2 * chunks}")  # the same ranks, half the bubble
    found["compute"] = words.microbatches(batch) * each
    found["bubble"] = 2.0 * (seconds(idle, single) - seconds(idle, finer))
    found["update"] = seconds(idle, plain) - found["compute"] - found["bubble"]
    return found


def _zero(constants: ConstantSet, names: tuple[str, ...]) -> ConstantSet:
    """The constants with some of them nothing."""
    gone = {
        n: replace(constants.constants[n], value=0.0) for n in names if n in constants.constants
    }
    return ConstantSet(constants.owner, {**constants.constants, **gone})


def _as(kind: type[ServerNetwork], network: ServerNetwork) -> ServerNetwork:
    """The network as another kind of it."""
    return kind(network.each, network.fabric, network.inside, network.card, network.latency,
                network.rates)  # fmt: skip


def row_changes(setting: PricingSetting, words: GivenWords) -> list[RowChange]:
    """Plans with one word changed that fit, the fastest first.

    Args:
        setting: what is priced on.
        words: the plan that is changed.
    """
    found = []
    for told, other in _changed(setting, words):
        if other == words:
            continue
        answer = price(setting, other)
        if answer.feasible and answer.step_time is not None:
            found.append(RowChange(told, answer))
    return sorted(found, key=lambda change: change.answer.step_time or 0.0)


def _changed(setting: PricingSetting, words: GivenWords) -> Iterator[tuple[str, GivenWords]]:
    """Single changes of a plan."""
    for size in (words.microbatch_size * 2, words.microbatch_size // 2):
        if size:
            yield f"microbatch_size={size}", replace(words, microbatch_size=size)
    for zero in setting.traits["zeros"]:
        yield f"zero={zero}", replace(words, zero=int(zero))
    for again in ("none", "selective", "full"):
        yield f"recompute={again}", replace(words, recompute=again)
    yield (
        f"sp={'off' if words.sp == 'on' else 'on'}",
        replace(words, sp="off" if words.sp == "on" else "on"),
    )
    for overlap in ("reduce", "reduce+gather"):
        yield f"overlap={overlap}", replace(words, overlap=overlap)
    for schedule in ("1f1b", "interleaved:2", "interleaved:4"):
        if words.pp > 1:
            yield f"schedule={schedule}", replace(words, schedule=schedule, layers="")
    for told, count in degrees_moved({"dp": words.dp, "tp": words.tp, "pp": words.pp}):
        moved = replace(words, dp=count["dp"], tp=count["tp"], pp=count["pp"], layers="")
        yield told, moved


def degrees_moved(count: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Degrees of as many devices, one twice and another half of what it was, and what changed."""
    for more, less in permutations(count, 2):
        if count[less] % 2 == 0:
            moved = {**count, more: count[more] * 2, less: count[less] // 2}
            yield f"{more}={moved[more]} and {less}={moved[less]}", moved
