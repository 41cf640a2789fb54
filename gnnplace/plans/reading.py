"""The strict reader of plan files, for all commands and functions.

`plans.plan` validates each key by itself; this module checks keys against each other. All plans
pass through `check_plan`, which reports a contradiction in one line with the key's path. What only
a model or a cluster can contradict (calls, parameters, the fingerprint, devices) is checked where
these are known: `check_cluster`, `run.planned.check_model`, `given.draft_plan`.

Complexity: O(A P) for A actions on P ranks (`order.checker`), else linear in the file.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from gnnplace.costs import OPTIMIZERS, PARAMETER, TRAITS, load_environment_constants
from gnnplace.errors import FormatError, InputError, MismatchError, suggestion
from gnnplace.files import parse, read_json
from gnnplace.plans.decoders.adapters import parse_adapters
from gnnplace.plans.launchers import READ_NAMES
from gnnplace.plans.order.checker import Checked, check_actions
from gnnplace.plans.order.orders import stage_ranks
from gnnplace.plans.order.rows import parse_rows, with_messages
from gnnplace.plans.plan import OWN, Plan, PlanFile, StageEntry
from gnnplace.plans.spec import parse_spec
from gnnplace.problem import Cluster, is_preset, load_cluster

PLAN = "gnnplace-plan"
CLOSE = 1e-6  # relative difference of times that count as equal
MOST_PASSES = 10**7  # passes of a step: stages times micro-batches
MOST_ELEMENTS = 2**33  # elements of the largest input
WORD = re.compile(r"(R|P|S[0-9]{1,2}(/[1-9][0-9]{0,5})?)(:\w+)?")
LOCAL = re.compile("auto|(cpu|cuda)(?::([1-9][0-9]{0,3}))?")
MOST_LOCAL = 1024  # devices of one machine at most


def is_plan(path: str | Path) -> bool:
    """Return whether a file is that of a plan of any kind. A file that cannot be read is none."""
    try:
        data = read_json(path)
    except InputError:
        return False
    return isinstance(data, dict) and data.get("format") == PLAN


def read_plan(path: str | Path) -> Plan:
    """Read a plan's file.

    Raises:
        FormatError: The message names the file, the key path and the fault.
    """
    return plan_from_data(read_json(path), str(path))


def plan_from_data(data: object, source: str) -> Plan:
    """Return the plan that JSON data hold.

    Raises:
        FormatError: The message names `source`, the key path and the fault.
    """
    try:
        file = parse(PlanFile, data, source)
    except FormatError as error:
        raise FormatError(str(error)) from None  # one line, however many keys are wrong
    check_plan(file, source)
    return Plan(file)


def check_plan(file: PlanFile, source: str = "plan") -> Checked:
    """Check a plan's file and return the actions of every rank, messages included.

    Args:
        file: A plan's file, each key of which is right by itself.
        source: The name that messages begin with.

    Raises:
        FormatError: The message names `source`, the key path and the fault.
    """
    fault = next(_faults(file), None)
    if fault is not None:
        raise FormatError(f"{source}: {fault}")
    ranks = file.rank_of
    rows = with_messages(parse_rows(file.actions, source), ranks)
    saved = [stage.saved for stage in file.stages if stage.saved is not None]
    if len(saved) != len(file.stages):
        saved = []
    checked = check_actions(rows, ranks, file.microbatches, source, saved=saved)
    for k, stage in enumerate(file.stages if saved else ()):
        for name in stage.device_names:
            live = checked.live[ranks[k]]
            room = file.memory[name].activations
            if live > room * (1 + CLOSE):
                raise FormatError(
                    f"{source}: memory.{name}.activations: {room / 1e6:.3g} MB, and "
                    f"actions[{ranks[k]}] keeps {live / 1e6:.3g} MB at once of what stages[{k}]."
                    "saved says; run backward passes earlier"
                )
    return checked


def check_cluster(file: PlanFile, source: str) -> None:
    """Check that the plan's cluster exists and has the plan's devices.

    Raises:
        FormatError: The message names `source`, the key path and the fault.
    """
    local = LOCAL.fullmatch(file.cluster)
    if local is not None:  # of this machine, by number; all that there are without one
        kinds = (local[1],) if local[1] else ("cpu", "cuda")
        device_names = {
            f"{kind}:{k}" for kind in kinds for k in range(int(local[2] or MOST_LOCAL))
        }
    else:
        device_names = set(_load_plan_cluster(file, source).device_index)
    for k, stage in enumerate(file.stages):
        for name in stage.device_names:
            if name not in device_names:
                raise FormatError(
                    f"{source}: stages[{k}].devices: cluster {file.cluster!r} has no {name!r}"
                )


def _load_plan_cluster(file: PlanFile, source: str) -> Cluster:
    """Load the cluster of a plan's name, or of the file that the plan names.

    Raises:
        FormatError: If the name is no preset, or the file cannot be read.
    """
    if file.cluster_file is None:
        key = "cluster"
    else:
        key = "cluster_file"
    try:
        if key == "cluster" and not is_preset(file.cluster):
            raise InputError(
                f"{file.cluster!r} is no preset, cpu:N or cuda:N; name its YAML file as "
                "cluster_file"
            )
        return load_cluster(file.cluster_file or file.cluster)
    except InputError as error:
        raise FormatError(f"{source}: {key}: {error}") from None


def check_words(file: PlanFile, **asked: str | int | None) -> None:
    """Check that a plan says what is asked of it; None asks nothing.

    Raises:
        MismatchError: The message names the key path and what differs.
    """
    for key, value in asked.items():
        stated = getattr(file, key)
        if value not in (None, stated):
            raise MismatchError(
                f"plan: {key}: it is for {stated!r}, not {value!r}; give --{key} {stated}, or make "
                "a plan for the other"
            )


def _faults(file: PlanFile) -> Iterator[str]:
    """Yield the contradictions in a file, except those of its actions.

    Each check may rely on those before it.
    """
    for key, allowed in (("precision", PARAMETER), ("optimizer", OPTIMIZERS)):
        word = getattr(file, key)
        if word not in allowed:
            yield f"{key}: {word!r}: unknown; use one of {', '.join(allowed)}"
    try:
        if file.lora is not None:
            parse_adapters(file.lora)
    except InputError as error:
        yield f"lora: {error}"
    yield from _framework(file)
    yield from _stages(file)
    yield from _ranks(file)
    yield from _cut(file)
    yield from _times(file)
    yield from _memory(file)
    yield from _inputs(file)


def _framework(file: PlanFile) -> Iterator[str]:
    """Yield what is wrong with framework, launcher, environment or the words of a plan."""
    if file.framework not in TRAITS:
        yield f"framework: {file.framework!r}: unknown; use one of {', '.join(TRAITS)}"
    launchers = (*READ_NAMES, OWN)
    if file.launcher not in (None, *launchers):
        yield f"launcher: {file.launcher!r}: unknown; use one of {', '.join(launchers)}"
    try:
        if file.environment is not None:
            load_environment_constants(file.environment)
    except InputError as error:
        yield f"environment: {error}"
    try:
        if file.words is not None:
            parse_spec(file.words)
    except InputError as error:
        yield f"words: {error}"
    for name, entry in file.alternatives.items():
        if name not in launchers:
            yield f"alternatives.{name}: unknown; launchers are {', '.join(launchers)}"
        if entry.plan is not None:
            for fault in _faults(entry.plan):
                yield f"alternatives.{name}.plan.{fault}"


def _stages(file: PlanFile) -> Iterator[str]:
    stage_of: dict[str, int] = {}
    if file.cluster_file is not None and LOCAL.fullmatch(file.cluster):
        yield f"cluster_file: {file.cluster} has none"
    for k, stage in enumerate(file.stages):
        place = f"stages[{k}]"
        yield from _devices(stage, f"{place}.devices")
        yield from _twice(stage.modules, f"{place}.modules")
        yield from _twice(stage.members, f"{place}.members")
        for name in stage.members:
            if stage_of.setdefault(name, k) != k:
                yield f"{place}.members: {name!r} is in stages[{stage_of[name]}], too"
        recompute = stage.recompute
        members = frozenset(stage.members)
        yield from _twice(recompute.modules, f"{place}.recompute.modules")
        if (recompute.kind == "none") != (not recompute.modules):
            count = len(recompute.modules)
            yield f"{place}.recompute: kind {recompute.kind!r} with {count} modules"
        if recompute.layers and recompute.kind != "full":
            yield f"{place}.recompute.layers: {recompute.layers}, but kind is {recompute.kind!r}"
        for name in recompute.modules:
            if name not in members:
                yield f"{place}.recompute.modules: {name!r} is none of the stage's members"
        if stage.regather and math.prod(stage.axes) == 1:
            yield f"{place}.regather: one shard gathers nothing again; set it to false"
        for name, words in stage.placements.items():
            yield from _read_placed(words, stage, f"{place}.placements.{name}")
        if len(stage.seconds) not in (0, 3):
            yield f"{place}.seconds: has {len(stage.seconds)} numbers; forward, I and W are three"


def _read_placed(words: list[str], stage: StageEntry, where: str) -> Iterator[str]:
    unreadable = next((word for word in words if WORD.fullmatch(word) is None), None)
    if unreadable is not None:
        reason = f"{unreadable[:40]!r} is no placement"
        yield f"{where}: {reason}; write R, P, or S and the axis: S1, S0/3"
    if words[0] != "R":
        yield f"{where}: {words}: replicas split nothing: the first word is R"
    if len(stage.axes) == 1 and words[1] != "R":
        yield f"{where}: {words}: the stage has no outer shards: the second word is R"
    if len(stage.rows[0]) == 1 and words[2] != "R":
        yield f"{where}: {words}: the stage has one shard"


def _devices(stage: StageEntry, where: str) -> Iterator[str]:
    """Yield what is wrong with the devices of a stage.

    Args:
        stage: The stage.
        where: The stage's place in the file.
    """
    if len({len(row) for row in stage.rows}) > 1:
        yield f"{where}: rows of different lengths"
    inner = {len(row) for replica in stage.devices for row in replica}
    if len({len(replica) for replica in stage.devices}) > 1 or len(inner) > 1:
        yield f"{where}: replicas must have as many outer shards each, and these as many inner ones"
    if len(stage.borders) > len(stage.axes):
        yield f"{where.removesuffix('devices')}border: {stage.border!r} is of two axes of shards"
    if inner == {1} and len(stage.devices[0]) > 1:
        yield f"{where}: one axis of shards is the inner one: [[[first, second, …]], …]"
    yield from _twice(stage.device_names, where)


def _ranks(file: PlanFile) -> Iterator[str]:
    ranks = file.rank_of
    count = len(file.stages)
    if len(ranks) != count:
        yield f"ranks: has {len(ranks)} numbers for {count} stages"
    if set(ranks) != set(range(len(set(ranks)))):
        yield f"ranks: {_short(ranks)}: must be numbered from 0 on, without a gap"
    try:
        wanted = stage_ranks(file.schedule, count)
    except InputError as error:
        yield str(error).replace(" ", ": ", 1)
        return
    if ranks != wanted:
        yield (
            f"ranks: {_short(ranks)}: schedule {file.schedule!r} has {count} stages on ranks "
            f"{_short(wanted)}"
        )
    owner: dict[str, int] = {}
    for k, (stage, rank) in enumerate(zip(file.stages, ranks, strict=True)):
        if stage.devices != file.stages[ranks.index(rank)].devices:
            yield f"stages[{k}].devices: rank {rank} has others already"
        for name in stage.device_names:
            if owner.setdefault(name, rank) != rank:
                yield f"stages[{k}].devices: {name!r} is of rank {owner[name]} already"


def _cut(file: PlanFile) -> Iterator[str]:
    """Yield what contradicts the batch: sizes that do not divide, or too many micro-batches."""
    share = file.microbatch_size * len(file.stages[0].devices)
    if file.batch % share:
        yield (
            f"batch: {file.batch} is no multiple of microbatch_size, {file.microbatch_size} "
            f"examples, on {len(file.stages[0].devices)} replicas"
        )
    for k, stage in enumerate(file.stages):
        if share % len(stage.devices):
            yield (
                f"stages[{k}].devices: a micro-batch of {share} examples has no "
                f"{len(stage.devices)} equal parts"
            )
    if file.microbatches * len(file.stages) > MOST_PASSES:
        yield f"batch: {file.microbatches} micro-batches of a step are more than can be run"


def _times(file: PlanFile) -> Iterator[str]:
    step, (low, high) = file.step_time, file.interval or (0.0, math.inf)
    if (step is None) != (file.interval is None):
        yield "interval: must be there with step_time, and only with it"
    if low > high:
        yield f"interval: [{low:g}, {high:g}]: the lower end comes first"
    if step is not None and not low * (1 - CLOSE) <= step <= high * (1 + CLOSE):
        yield f"step_time: {step:g} s is not in the interval, [{low:g}, {high:g}]"
    if step is not None and (file.lower_bound or 0.0) > step * (1 + CLOSE):
        yield f"lower_bound: {file.lower_bound:g} s is above the step_time, {step:g} s"
    parts = sum(file.parts.values())
    waits = file.parts.get("bubble", 0.0) > 0 or parts < (step or 0.0)
    if (
        file.parts
        and step is not None
        and waits
        and not math.isclose(parts, step, rel_tol=CLOSE)
    ):
        yield f"parts: add up to {parts:g} s, and step_time is {step:g} s"
    ranks = max(file.rank_of) + 1
    cuts = len(file.stages) - 1
    counts = (len(file.sent), len(file.ends))
    if counts not in ((0, 0), (cuts, ranks)):
        yield (
            f"sent, ends: have {len(file.sent)} and {len(file.ends)} numbers for {cuts} cuts of "
            f"stages and {ranks} ranks"
        )


def _memory(file: PlanFile) -> Iterator[str]:
    devices = dict.fromkeys(
        name for stage in file.stages for name in stage.device_names
    )
    for name in file.memory:
        if name not in devices:
            yield f"memory.{name}: is among no stage's devices" + suggestion(
                name, devices
            )
    for name in devices:
        if name not in file.memory:
            yield f"memory: lacks {name!r}, which is among the devices"


def _inputs(file: PlanFile) -> Iterator[str]:
    names = [x.name for x in file.inputs if x.name is not None]
    if len(names) not in (0, len(file.inputs)):
        yield "inputs: all have a name, or none has"
    yield from _twice(names, "inputs[..].name")
    for k, entry in enumerate(file.inputs):
        if math.prod(entry.shape) > MOST_ELEMENTS:
            yield f"inputs[{k}].shape: {_short(entry.shape)}: is too large"
    if file.inputs and file.inputs[0].shape[:1] not in ([], [file.batch]):
        yield f"inputs[0].shape: has {file.inputs[0].shape[0]} examples, and batch is {file.batch}"


def _twice(names: Iterable[str], where: str) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{where}: {name!r} is there {times} times"


def _short(numbers: Iterable[int]) -> str:
    """Return the first eight of some numbers as text."""
    texts = [str(number) for number in numbers]
    return f"[{', '.join([*texts[:8], *(['…'] if len(texts) > 8 else [])])}]"
