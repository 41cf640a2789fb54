"""Searches of plans in words against every plan of their space, on random questions.

A question is a decoder of random sizes, a batch, a framework, 1 to 16 devices and a memory in which
not everything fits. The plans are enumerated here, apart from the search, and each is priced alone:
every product of degrees, micro-batch, ZeRO stage, schedule, cut by a rule and recomputed layers. A
row says what the search found, what the least of all is, and the gap that was claimed::

    python -m benchmarks.plan_enumeration --questions 100 -o rows.csv

With `--sample N` questions are large: a model of `MODELS` on up to 1,024 devices. So many plans are
drawn at random from each space instead of all of them, every second one near the answer: with one
or two of its words changed. None may be faster, nor below the bound.

With `--mixed` half of the servers have GPUs of another kind, and pipelines are cut in every way and
not by rules alone. The search tries cuts by rules and by the ranks' speed, so that the least of all
may be below its bound; the last line says by how much at most.

Complexity: a price for each of some thousands of plans a question, about two seconds; of large
ones about a millisecond a plan.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import (
    DecoderSizes,
    ExpertLayers,
    catalogue_decoder,
)
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.decoders.stages import cut_layers
from gnnplace.plans.segments.chain import list_divisors
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.plans.spec_groups import SpecSpace, list_recomputed_modules
from gnnplace.plans.spec_search import search_specs
from gnnplace.problem import OWN_BETWEEN, Cluster
from gnnplace.problem.cluster.servers import ServerPool, Servers, Wire

FRAMEWORKS = (
    "pytorch",
    "megatron-lm",
    "torchtitan",
    "nanotron",
    "megatron-deepspeed",
    "internevo",
)
RULES = ("ends", "least", "even")
UNLOOPED = ("gpipe", "zero-bubble", "v", "zbv")
"""Schedules beside 1F1B that do not loop over a number of chunks."""
COLUMNS = (
    "question", "model", "framework", "devices", "layers", "batch", "memory", "offload", "experts",
    "plans",
    "least", "found", "bound", "priced", "enumerated_s", "searched_s", "words",
)  # fmt: skip
KINDS = ("a100-80", "h100", "h200", "b200")
"""Kinds of GPUs of mixed questions."""


@dataclass(frozen=True)
class Question:
    """A random question.

    Attributes:
        setting: The sizes, the devices and the framework.
        num_devices: Devices that every plan uses.
        offload: What every plan has in the host's memory.
    """

    setting: PricingSetting
    num_devices: int
    offload: str = "none"


MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-ai/DeepSeek-V3",
)
"""Models of large questions."""
DEGREES = ("dp", "tp", "cp", "pp")


def large_question(rng: random.Random) -> Question:
    """Draw a question of a model that people train, on up to 1,024 devices."""
    num_devices = rng.choice((16, 64, 128, 512, 1024))
    sizes = catalogue_decoder(rng.choice(MODELS))
    assert sizes is not None
    setting = make_pricing_setting(
        replace(sizes, length=4096, batch=rng.choice((128, 256, 512))),
        resolve_cluster(f"{num_devices}xH100"),
        framework_name=rng.choice(FRAMEWORKS),
    )
    return Question(setting, num_devices)


def random_degrees(rng: random.Random, num_devices: int) -> dict[str, int]:
    """Draw degrees of parallelism whose product is the number of devices."""
    degrees: dict[str, int] = {}
    factor = num_devices
    for name in rng.sample(DEGREES, len(DEGREES)):
        degrees[name] = rng.choice(list_divisors(factor))
        factor //= degrees[name]
    degrees[rng.choice(DEGREES)] *= factor
    return degrees


def random_plan(
    rng: random.Random, question: Question, degrees: dict[str, int] | None = None
) -> PlanSpec | None:
    """Draw a plan of a question's space; None where what was drawn does not divide.

    Args:
        rng: Draws the words.
        question: The question.
        degrees: Of parallelism; None: they are drawn, too.
    """
    setting, count = question.setting, question.num_devices
    sizes, traits = setting.decoder, setting.framework.traits
    degrees = degrees or random_degrees(rng, count)
    dp, tp, cp, pp = (degrees[name] for name in DEGREES)
    if dp * tp * cp * pp != count or sizes.batch % dp or pp > sizes.layers or cp > 64:
        return None
    schedules = ["1f1b"]
    if pp > 1:
        schedules += [name for name in UNLOOPED if name in traits.schedules]
        if "interleaved" in traits.schedules and sizes.layers // pp > 1:
            chunks = rng.randint(2, min(32, sizes.layers // pp))
            schedules += [f"interleaved:{chunks}"] * 4
    zero, group, overlap = rng.choice(list(ways_to_share(question, dp * cp, tp)))
    ep = rng.choice(list_divisors(dp * cp)) if sizes.experts else 1
    if group is not None and group % math.lcm(cp, ep):
        return None
    most_layers = max(1, sizes.layers // pp)
    recomputed = [
        "none",
        "selective",
        "full",
        f"block:{rng.randint(1, most_layers)}",
        *list_recomputed_modules(setting),
    ]
    if pp > 1 and traits.recomputes_by_rank:
        counts = [str(rng.randint(0, most_layers)) for _ in range(pp)]
        recomputed.append(f"block:{'+'.join(counts)}")
    spec = PlanSpec(
        **degrees,
        ep=ep,
        sp=rng.random() < 0.8,
        zero=zero,
        zero_group=group,
        overlap=overlap,
        microbatch_size=rng.choice(
            [s for s in list_divisors(sizes.batch // dp) if s <= 64]
        ),
        batch=sizes.batch,
        schedule=rng.choice(schedules),
        recompute=rng.choice(recomputed),
    )
    if spec.schedule_name == "interleaved" and spec.num_microbatches(sizes.batch) % pp:
        return None
    return replace(spec, layers=rng.choice(list(cuts(setting, spec))))


WORDS = (
    ("zero", "zero_group", "overlap"),
    ("microbatch_size",),
    ("schedule", "layers"),
    ("recompute",),
    ("sp",),
    ("layers",),
)
"""Words that are changed together."""


def neighbour(
    rng: random.Random, question: Question, spec: PlanSpec
) -> PlanSpec | None:
    """Draw a plan that differs from another in one or two of `WORDS`; None where none was drawn."""
    drawn = random_plan(rng, question, {name: getattr(spec, name) for name in DEGREES})
    if drawn is None:
        return None
    words = [name for group in rng.sample(WORDS, rng.choice((1, 2))) for name in group]
    return replace(spec, **{name: getattr(drawn, name) for name in words})


def least_of_sample(
    rng: random.Random, question: Question, answer: PlanSpec | None, number: int
) -> tuple[float, str, int]:
    """Return the seconds of the fastest of so many random plans, its words, and the number."""
    least, words = float("inf"), ""
    for count in range(number):
        near = answer is not None and count % 2 == 1
        spec = (
            neighbour(rng, question, answer)
            if near and answer
            else random_plan(rng, question)
        )
        if spec is None:
            continue
        found = price(question.setting, spec)
        if found.feasible and found.step_time is not None and found.step_time < least:
            least, words = found.step_time, str(spec)
    return least, words, number


def mixed_cluster(rng: random.Random, num_devices: int) -> Cluster:
    """Draw two servers of as many GPUs each, of two kinds and sizes of memory."""
    network = Wire(rng.choice((5e9, 45e9)), 1e-5, OWN_BETWEEN)
    parts: list[Servers] = []
    for kind in rng.sample(KINDS, 2):
        memory = rng.choice((5e9, 8e9, 12e9, 20e9, 79e9))
        inside = Wire(rng.choice((2e10, 2e11)), 5e-6)
        parts.append(Servers(kind, memory, 1, num_devices // 2, inside, network))
    return ServerPool(tuple(parts)).cluster("+".join(part.kind for part in parts))


def random_question(rng: random.Random, *, is_mixed: bool = False) -> Question:
    """Draw a question.

    Args:
        rng: The source of randomness.
        is_mixed: Whether the devices are of two kinds.
    """
    num_devices = rng.choice((2, 4, 8) if is_mixed else (1, 2, 3, 4, 6, 8, 12, 16))
    heads = rng.choice((8, 12, 16))
    sizes = DecoderSizes(
        layers=rng.randint(2, 7),
        hidden=heads * rng.choice((64, 128)),
        heads=heads,
        kv_heads=rng.choice((heads, heads // 2, heads // 4)),
        feed_forward=1024 * rng.randint(2, 12),
        length=rng.choice((512, 1024, 4096)),
        vocabulary=rng.choice((32000, 128256)),
        gated=rng.random() < 0.7,
        tied=rng.random() < 0.3,
        batch=rng.choice((2, 4, 8, 12, 16)),
    )
    if rng.random() < 0.25:
        sizes = replace(sizes, experts=ExpertLayers(rng.choice((4, 8)), 2, 2048))
    if is_mixed:
        cluster = mixed_cluster(rng, num_devices)
        setting = make_pricing_setting(
            sizes, cluster, framework_name=rng.choice(FRAMEWORKS)
        )
        return Question(setting, num_devices)
    setting = make_pricing_setting(
        sizes,
        resolve_cluster("16xH100"),
        framework_name=rng.choice(FRAMEWORKS),
        memory_limit=rng.choice((None, 3e9, 5e9, 8e9, 12e9, 20e9)),
    )
    offloads = [
        name for name in setting.framework.traits.offloads if name != "activations"
    ]
    offload = rng.choice(("none", *offloads))
    return Question(setting, num_devices, offload)


def layouts(question: Question) -> Iterator[PlanSpec]:
    """Yield all plans without recomputation."""
    setting, count = question.setting, question.num_devices
    sizes, traits = setting.decoder, setting.framework.traits
    for dp, tp, cp, pp in itertools.product(list_divisors(count), repeat=4):
        if (
            dp * tp * cp * pp != count
            or sizes.batch % dp
            or pp > sizes.layers
            or cp > 64
        ):
            continue
        schedules = ["1f1b"]
        if pp > 1:
            schedules += [
                name
                for name in ("gpipe", "zero-bubble", "v")
                if name in traits.schedules
            ]
            if "interleaved" in traits.schedules:
                chunks = range(2, min(32, sizes.layers // pp) + 1)
                schedules += [
                    f"interleaved:{count_of_chunks}" for count_of_chunks in chunks
                ]
        experts = list_divisors(dp * cp) if sizes.experts else [1]
        shared = list(ways_to_share(question, dp * cp, tp))
        micro = [size for size in list_divisors(sizes.batch // dp) if size <= 64]
        for ep, (zero, group, overlap), size, sp, schedule in itertools.product(
            experts, shared, micro, (True, False), schedules
        ):
            if group is not None and group % math.lcm(cp, ep):
                continue
            spec = PlanSpec(
                dp=dp,
                tp=tp,
                cp=cp,
                pp=pp,
                ep=ep,
                sp=sp,
                zero=zero,
                zero_group=group,
                overlap=overlap,
                microbatch_size=size,
                batch=sizes.batch,
                schedule=schedule,
                offload=question.offload,
            )
            if (
                schedule.startswith("interleaved")
                and spec.num_microbatches(sizes.batch) % pp
            ):
                continue
            for layers in cuts(setting, spec):
                yield replace(spec, layers=layers)


def ways_to_share(
    question: Question, replicas: int, tp: int
) -> Iterator[tuple[int, int | None, str | None]]:
    """Yield ZeRO's stages, replicas of a group that shares (None: all), and what is hidden.

    Groups are of the replicas of one server, where there are several.
    """
    setting = question.setting
    traits, server = setting.framework.traits, setting.framework.network.per_server
    is_shared = replicas > 1 or question.offload != "none"
    for zero in traits.zero_stages if is_shared else (0,):
        groups: list[int | None] = [None]
        if zero in traits.zero_groups and setting.cluster.num_devices > server:
            near = setting.framework.replica_group(replicas, 1, tp).members
            groups += [near] if 1 < near < replicas else []
        overlaps: list[str | None] = [None]
        if traits.may_hide != "none" and replicas > 1:
            overlaps.append("reduce+gather" if zero else "reduce")
        yield from itertools.product((zero,), groups, overlaps)


def cuts(setting: PricingSetting, spec: PlanSpec) -> Iterator[tuple[int, ...] | None]:
    """Yield the cuts of the layers by every rule; on devices of several kinds every cut."""
    yield None
    if spec.pp == 1:
        return
    num_layers = setting.decoder.layers
    if len(setting.cluster.kinds) > 1:
        inner = itertools.combinations(range(1, num_layers), spec.num_stages - 1)
        for ends in inner:
            bounds = (0, *ends, num_layers)
            yield tuple(last - first for first, last in itertools.pairwise(bounds))
    for rule in RULES:
        try:
            yield cut_layers(setting.decoder, spec.num_stages, rule)
        except InputError:
            continue


def least_of_all(question: Question) -> tuple[float, str, int]:
    """Return the seconds of the fastest plan that fits, its words, and how many were priced."""
    least, words, number = float("inf"), "", 0
    kinds = ["none", "selective", "full", *list_recomputed_modules(question.setting)]
    kinds += [f"block:{k}" for k in range(1, question.setting.decoder.layers)]
    for plain in layouts(question):
        for recompute in kinds:
            spec = replace(plain, recompute=recompute)
            answer = price(question.setting, spec)
            number += 1
            if (
                answer.feasible
                and answer.step_time is not None
                and answer.step_time < least
            ):
                least, words = answer.step_time, str(spec)
    return least, words, number


def model_name(sizes: DecoderSizes) -> str:
    """Return the name of a model of some sizes, "" if transformers has no such layers."""
    try:
        return sizes.model
    except InputError:
        return ""


def row_of(
    number: int, question: Question, rng: random.Random, num_samples: int | None
) -> dict[str, object]:
    """Return a row: the search beside all plans, or beside random ones.

    Args:
        number: Of the question.
        question: The question.
        rng: Draws random plans.
        num_samples: How many; None: all plans of the space.
    """
    setting = question.setting
    sizes = setting.decoder
    began = time.process_time()
    modes = PlanSpec(offload=question.offload)
    space = SpecSpace(setting, sizes.batch, question.num_devices, modes)
    answer = search_specs(space, num_best=1)
    searched = time.process_time() - began
    began = time.process_time()
    if num_samples is None:
        least, words, plans = least_of_all(question)
    else:
        best = answer.best[0].spec if answer.best else None
        least, words, plans = least_of_sample(rng, question, best, num_samples)
    enumerated = time.process_time() - began
    return {
        "question": number,
        "model": model_name(sizes),
        "framework": setting.framework.name,
        "devices": question.num_devices,
        "layers": sizes.layers,
        "batch": sizes.batch,
        "memory": setting.framework.memory,
        "offload": question.offload,
        "experts": sizes.experts.count if sizes.experts else 0,
        "plans": plans,
        "least": least,
        "found": answer.best[0].seconds if answer.best else float("inf"),
        "bound": answer.bound,
        "priced": answer.num_priced,
        "enumerated_s": round(enumerated, 3),
        "searched_s": round(searched, 3),
        "words": words,
    }


def main() -> int:
    """Ask random questions; the exit code says whether a search missed the least plan."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--sample", type=int, default=None)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default=None)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rows = []
    for number in range(options.questions):
        question = (
            random_question(rng, is_mixed=options.mixed)
            if options.sample is None
            else large_question(rng)
        )
        row = row_of(number, question, rng, options.sample)
        rows.append(row)
        sys.stderr.write(f"{number}: {row['found']} {row['least']} of {row['plans']}\n")
    if options.output is not None:
        with open(options.output, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    missed = [
        row
        for row in rows
        if float(str(row["found"])) > float(str(row["least"])) * 1.000001
    ]
    beyond = [
        row
        for row in rows
        if float(str(row["bound"])) > float(str(row["least"])) * 1.000001
    ]
    sys.stdout.write(
        f"{len(rows)} questions, {sum(int(str(row['plans'])) for row in rows):,} plans: "
        f"{len(missed)} slower than the least, {len(beyond)} bounds above it\n"
    )
    if options.mixed:
        ratios = [float(str(row["found"])) / float(str(row["least"])) for row in missed]
        worst = max(ratios, default=1.0) - 1.0
        sys.stdout.write(
            f"over every cut of the layers: slower by {worst:.1%} at most\n"
        )
        return 0
    return 1 if missed or beyond else 0


if __name__ == "__main__":
    raise SystemExit(main())
