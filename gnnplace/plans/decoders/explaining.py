"""What bounds a step that is priced from a decoder's sizes, and which single word would help most.

Waits of stages come first: twice what a step of one micro-batch is shorter by with twice as many
stages a rank, which have half of them. The rest is priced again without one thing after the other,
each time less its own waits; what each takes away is its part, in seconds that are not hidden
behind something else: checks of collectives, the host's launches, messages between stages,
exchanges of replicas, exchanges of shards, what is computed again. Of what is left the busiest
rank's work is `compute`, and the optimizer's step `update`. Replicas and shards share one network,
so that replicas are told apart by a step of one replica with as many micro-batches: what they
exchange is how much longer their step is than that one, less the same on a network that takes
nothing. Parts add up to the step.

Complexity: thirty prices, and one a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from gnnplace.costs.frameworks.constants import ConstantSet, environment
from gnnplace.costs.network import ServerNetwork
from gnnplace.plans.decoders.pricing import PlanAnswer, price
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.decoders.step import cut_of, step_time
from gnnplace.plans.spec import PlanSpec

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
SUSPECTS = {
    "exchanges": ("exchanges at half of their speed",
                  "run NCCL's all_reduce_perf on the same groups; look for links that are down"),
    "host": ("launches that take twice as long",
             "torch.compile or CUDA graphs, larger micro-batches, no synchronising in the loop"),
    "clock": ("kernels at three quarters of their clock",
              "nvidia-smi -q -d CLOCK,PERFORMANCE while it runs: power or heat, or others on the "
              "GPUs"),
    "recompute": ("all layers recomputed unasked",
                  "the launcher's own default: print its configuration"),
    "checks": ("collectives that are checked", "unset TORCH_DISTRIBUTED_DEBUG and NCCL_DEBUG"),
}  # fmt: skip
"""What makes runs slower than predicted, and what to try first."""
PASSES = ("host_pass", "host_message")  # of which finer stages have more
HOST = ("host_layer", "host_layer_shards", "host_pass", "host_message", "host_update")


class SilentNetwork(ServerNetwork):
    """A network whose messages between stages take nothing."""

    def message(self, size: float, across: bool) -> float:
        """No seconds."""
        return 0.0


class IdleNetwork(SilentNetwork):
    """A network that takes nothing."""

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """No seconds."""
        return 0.0

    def reduce(self, count: int, size: float, members: int) -> float:
        """No seconds."""
        return 0.0


class SlowNetwork(ServerNetwork):
    """A network that takes twice as long."""

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """Twice the seconds."""
        return 2.0 * super().exchange(op, count, size, members)

    def reduce(self, count: int, size: float, members: int) -> float:
        """Twice the seconds."""
        return 2.0 * super().reduce(count, size, members)

    def message(self, size: float, across: bool) -> float:
        """Twice the seconds."""
        return 2.0 * super().message(size, across)


@dataclass(frozen=True)
class RowChange:
    """A plan with one word changed, which fits.

    Attributes:
        told: the change, in a few words.
        answer: what it takes.
    """

    told: str
    answer: PlanAnswer


@dataclass(frozen=True)
class Suspect:
    """What may make a run slower than predicted.

    Attributes:
        name: of `SUSPECTS`.
        seconds: that it would add to a step.
    """

    name: str
    seconds: float

    @property
    def told(self) -> str:
        """What it is."""
        return SUSPECTS[self.name][0]

    @property
    def first(self) -> str:
        """What to try first."""
        return SUSPECTS[self.name][1]


def likeliest(suspects: tuple[Suspect, ...], gap: float) -> tuple[Suspect, ...]:
    """Suspects that add a twentieth of a gap in seconds or more, the nearest to it first."""
    known = [x for x in suspects if gap > 0 and x.seconds >= gap / 20]
    return tuple(sorted(known, key=lambda x: abs(x.seconds - gap)))


def row_suspects(setting: PricingSetting, spec: PlanSpec, compute: float) -> Iterator[Suspect]:
    """What may make a run slower than its prediction, each priced.

    Args:
        setting: what is priced on.
        spec: the plan that runs.
        compute: seconds of the busiest rank's kernels.
    """
    cut, own = cut_of(setting, spec), setting.constants
    checks = setting.checks or environment("checked-collectives")
    changed = {
        "exchanges": (replace(setting, network=_as(SlowNetwork, setting.network)), spec),
        "host": (replace(setting, constants=_scaled(own, HOST, 2.0)), spec),
        "recompute": (setting, replace(spec, recompute="full")),
        "checks": (replace(setting, checks=checks), spec),
    }
    step = step_time(setting, spec, cut)
    yield Suspect("clock", compute / 3)
    for name, (other, told) in changed.items():
        yield Suspect(name, max(step_time(other, told, cut) - step, 0.0))


def row_parts(setting: PricingSetting, spec: PlanSpec) -> dict[str, float]:
    """Seconds of a step by what they go to; they add up to it.

    Raises:
        InputError: the layers cannot be cut so.
    """
    cut, found = cut_of(setting, spec), dict.fromkeys(ROW_PARTS, 0.0)
    batch, once = spec.batch or setting.decoder.batch, spec.dp * spec.microbatch_size
    alone = replace(spec, dp=1, zero=0, batch=batch // spec.dp)
    plain = replace(spec, recompute="none")

    def seconds(own: PricingSetting, told: PlanSpec) -> float:
        return step_time(own, told, cut)

    def waited(own: PricingSetting, told: PlanSpec) -> float:
        single = replace(told, batch=told.dp * told.microbatch_size)
        finer = replace(single, schedule=f"interleaved:{2 * spec.num_chunks}")  # half of the waits
        own = _silent(replace(own, constants=_scaled(own.constants, PASSES, 0.0)))
        return 2.0 * (seconds(own, single) - seconds(own, finer))

    def busy(own: PricingSetting, told: PlanSpec) -> float:
        return seconds(own, told) - waited(own, told)

    found["bubble"] = waited(setting, spec)
    bare = replace(setting, checks=None)
    found["checks"] = busy(setting, spec) - busy(bare, spec)
    free = replace(bare, constants=_scaled(bare.constants, HOST, 0.0))
    found["host"] = busy(bare, spec) - busy(free, spec)
    silent = _silent(free)
    found["messages"] = busy(free, spec) - busy(silent, spec)
    idle = replace(silent, network=_as(IdleNetwork, free.network))
    exchanged = busy(silent, spec) - busy(idle, spec)
    found["replicas"] = exchanged - (busy(silent, alone) - busy(idle, alone))
    found["shards"] = exchanged - found["replicas"]
    found["recompute"] = busy(idle, spec) - busy(idle, plain)
    double = seconds(idle, replace(plain, batch=2 * once))  # of the busiest rank, a micro-batch
    found["compute"] = batch // once * (double - seconds(idle, replace(plain, batch=once)))
    found["update"] = busy(idle, plain) - found["compute"]
    return found


def _silent(setting: PricingSetting) -> PricingSetting:
    """The setting with messages between stages that take nothing."""
    own = _scaled(setting.constants, ("message_latency",), 0.0)
    idle = isinstance(setting.network, IdleNetwork)
    network = setting.network if idle else _as(SilentNetwork, setting.network)
    return replace(setting, constants=own, network=network)


def _scaled(constants: ConstantSet, names: tuple[str, ...], factor: float) -> ConstantSet:
    """The constants with some of them times a factor."""
    own = constants.constants
    made = {n: replace(own[n], value=factor * own[n].value) for n in names if n in own}
    return ConstantSet(constants.owner, {**own, **made})


def _as(kind: type[ServerNetwork], network: ServerNetwork) -> ServerNetwork:
    """The network as another kind of it."""
    return kind(network.each, network.fabric, network.inside, network.card, network.latency,
                network.rates)  # fmt: skip


def row_changes(setting: PricingSetting, spec: PlanSpec) -> list[RowChange]:
    """Plans with one word changed that fit, the fastest first.

    Args:
        setting: what is priced on.
        spec: the plan that is changed.
    """
    found = []
    for told, other in _changed(setting, spec):
        if other == spec:
            continue
        answer = price(setting, other)
        if answer.feasible and answer.step_time is not None:
            found.append(RowChange(told, answer))
    return sorted(found, key=lambda change: change.answer.step_time or 0.0)


def _changed(setting: PricingSetting, spec: PlanSpec) -> Iterator[tuple[str, PlanSpec]]:
    """Single changes of a plan."""
    for size in (spec.microbatch_size * 2, spec.microbatch_size // 2):
        if size:
            yield f"microbatch_size={size}", replace(spec, microbatch_size=size)
    for zero in setting.traits["zeros"]:
        group = spec.zero_group if int(zero) else None
        yield f"zero={zero}", replace(spec, zero=int(zero), zero_group=group)
    for again in ("none", "selective", "full"):
        yield f"recompute={again}", replace(spec, recompute=again)
    yield (
        f"sp={'off' if spec.splits_tokens else 'on'}",
        replace(spec, sp=not spec.splits_tokens),
    )
    for kind in setting.traits["graphs"]:
        yield f"cuda_graphs={kind}", replace(spec, cuda_graphs=kind)
    if setting.traits["compiles"]:
        yield "compile=on", replace(spec, compile=True)
    for overlap in ("reduce", "reduce+gather"):
        yield f"overlap={overlap}", replace(spec, overlap=overlap)
    for schedule in ("1f1b", "interleaved:2", "interleaved:4"):
        if spec.pp > 1:
            yield f"schedule={schedule}", replace(spec, schedule=schedule, layers=None)
    for told, count in degrees_moved({"dp": spec.dp, "tp": spec.tp, "pp": spec.pp}):
        moved = replace(spec, dp=count["dp"], tp=count["tp"], pp=count["pp"], layers=None)
        yield told, moved


def degrees_moved(count: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Degrees of as many devices, one twice and another half of what it was, and what changed."""
    for more, less in permutations(count, 2):
        if count[less] % 2 == 0:
            moved = {**count, more: count[more] * 2, less: count[less] // 2}
            yield f"{more}={moved[more]} and {less}={moved[less]}", moved
