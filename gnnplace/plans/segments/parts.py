"""The kernels of a call's shard on a mesh, and their seconds.

The sizes of a call's kernels are products of axes, and their bytes are sums of such products. Each
product contains the axis that is divided by t shards, and the axis of examples, at most once. So a
size is a polynomial of degree one in the number of examples and in 1 / t:

    s(e, 1/t) = a + b e + c / t + d e / t.

Recordings at two numbers of examples and two numbers of shards therefore determine all others.
There are two exceptions, where the requested shard is recorded itself: two axes of shards that
divide two labels, and recordings whose ops differ (a copy that only one of them needs). Sums over
an axis of length one, and copies of it, are counted too; they take almost no time. Complexity: at
most four recordings a call and split, instead of one for every micro-batch and mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import (
    EAGER,
    NO_FLOOR,
    CostTables,
    Description,
    Floor,
    Kernel,
    join_rows,
    load_shipped_tables,
    make_rows,
    predict_in_step,
)
from gnnplace.plans.segments.chain import list_divisors
from gnnplace.plans.segments.recording import PaperShare, Recorded, record
from gnnplace.problem import find_kind
from gnnplace.sharding import LayerGraph, count_parts
from gnnplace.torch_names import FakeTensorMode, pytree
from gnnplace.tracing import PARAMETER, CallGraph, CallRef, make_fake_mode

Cut = tuple[tuple[str, int], ...]
"""Labels that shards divide, and the number of parts of each; sorted."""
Split = tuple[int, Cut, int]
"""A call, what shards divide of it, and the examples that they have."""
PASSES = ("forward", "backward", "whole")


@dataclass(frozen=True)
class Times:
    """Seconds of a pass through a part of a call.

    Attributes:
        kernels: Seconds of its kernels and the gaps after them.
        early: Seconds of the host, if it is launched in the forward pass.
        late: Seconds of the host, if it is launched in the backward pass.
        missed: Seconds of the kernels times their expected relative error.
    """

    kernels: float
    early: float
    late: float
    missed: float


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a call with the seconds of its passes on a kind of device.

    Attributes:
        recorded: Kernels of its passes.
        times: Seconds of each of `PASSES`.
    """

    recorded: Recorded
    times: tuple[Times, Times, Times]

    @property
    def forward(self) -> Times:
        """Return the seconds of the forward pass."""
        return self.times[0]

    @property
    def early(self) -> Times:
        """Return the seconds of the gradients that cannot wait."""
        return self.times[1]

    @property
    def whole(self) -> Times:
        """Return the seconds of all gradients."""
        return self.times[2]


@dataclass(eq=False)
class Parts:
    """The kernels and times of the parts of a model's calls.

    Attributes:
        layers: The model's calls, rules and operations, of the whole batch.
        batch: Number of examples of a step.
        precision: Precision of parameters and passes, in Lightning's words.
        tables: Measured seconds of kernels that predictions are made from.
        floor: Seconds that the host takes for a launch; by default eager PyTorch's on GPUs.
        fullest: How many times the mean's rows the fullest device of several with experts has.
        recordings: Kernels of the parts that were recorded.
    """

    layers: LayerGraph
    batch: int
    precision: str
    tables: CostTables = field(default_factory=load_shipped_tables)
    floor: Floor | None = None
    fullest: float = 1.0
    _keys: dict[int, object] = field(default_factory=dict)
    recordings: dict[object, Recorded] = field(default_factory=dict)
    _priced: dict[object, Part] = field(default_factory=dict)
    _mode: FakeTensorMode = field(default_factory=make_fake_mode)

    def part(self, split: Split, kind: str) -> Part:
        """Return a part of a call, with its times on a kind of device."""
        key = self._key(split, kind)
        if key not in self._priced:
            self.prepare([split], kind)
        return self._priced[key]

    def prepare(self, splits: Iterable[Split], kind: str) -> None:
        """Predict the times of several parts at once, which takes less than one by one."""
        new: dict[object, Recorded] = {}
        for split in splits:
            key = self._key(split, kind)
            if key not in self._priced and key not in new:
                new[key] = self.recorded(split)
        if not new:
            return
        passes = [getattr(r, name) for r in new.values() for name in PASSES]
        estimate = predict_in_step(
            join_rows([p.rows for p in passes]), kind, self.tables
        )
        ends = np.cumsum([len(p.owner) for p in passes])
        times = []
        for description, end in zip(passes, ends, strict=True):
            rows = slice(int(end) - len(description.owner), int(end))
            seconds = estimate.seconds[rows]
            error = estimate.error[rows]
            times.append(_times(description, seconds, error, self._floor(kind)))
        for k, (key, recorded) in enumerate(new.items()):
            self._priced[key] = Part(
                recorded, (times[3 * k], times[3 * k + 1], times[3 * k + 2])
            )

    def beside(self, kernels: Sequence[Kernel], kind: str) -> Times:
        """Return the times of kernels of float32 that are of no call."""
        if not kernels:
            return Times(0.0, 0.0, 0.0, 0.0)
        rows = make_rows((kernel, "float32") for kernel in kernels)
        predicted = predict_in_step(rows, kind, self.tables)
        floor = self._floor(kind)
        count = len(kernels)
        return Times(
            float(predicted.seconds.sum()) + count * floor.gap,
            count * floor.forward,
            count * floor.backward,
            float((predicted.seconds * predicted.error).sum()),
        )

    def recorded(self, split: Split) -> Recorded:
        """Return the kernels of a part, from recordings of others where these determine them."""
        corners, (call, cut, examples), recordings = (
            example_corners(self.batch),
            split,
            [],
        )
        for corner in corners:
            recordings.append(self._price_shard((call, cut, corner)))
        if len(corners) == 1 or examples in corners:
            return recordings[corners.index(examples)]
        at = (examples - corners[0]) / (corners[1] - corners[0])
        return between(recordings[0], recordings[1], at) or self._at(split)

    def _price_shard(self, split: Split) -> Recorded:
        call, cut, examples = split
        if len(cut) != 1:
            return self._at(split)
        ((label, shards),) = cut
        corners = shard_corners(shards)
        recordings = []
        for corner in corners:
            recordings.append(self._at((call, ((label, corner),), examples)))
        if len(corners) == 1:
            return recordings[0]
        at = (1 / shards - 1 / corners[0]) / (1 / corners[1] - 1 / corners[0])
        return between(recordings[0], recordings[1], at) or self._at(split)

    def _at(self, split: Split) -> Recorded:
        call, cut, examples = split
        key = (self.call_key(call), cut, examples)
        if key not in self.recordings:
            graph = self.layers.calls
            rule = self.layers.rules[call]
            parts = self.batch // examples
            batch = self.layers.operations.ops[call].batch
            is_whole = batch is None or rule.extents.get(batch, 1) % parts
            labels = (*(label for label, _ in cut), None if is_whole else batch)
            mesh = (*(count for _, count in cut), parts)
            share = PaperShare(count_parts(labels, mesh), self.fullest)
            self.recordings[key] = record(
                graph, call, rule, labels, share, self.precision, self._mode
            )
        return self.recordings[key]

    def _key(self, split: Split, kind: str) -> object:
        call, cut, examples = split
        return self.call_key(call), cut, examples, kind

    def call_key(self, call: int) -> object:
        """Return what decides the kernels of a call; equal calls have equal keys."""
        if call not in self._keys:
            self._keys[call] = _call_key(self.layers.calls, call)
        return self._keys[call]

    def _floor(self, kind: str) -> Floor:
        if self.floor is not None:
            return self.floor
        if find_kind(kind) == "cpu":
            return NO_FLOOR
        return EAGER


def _times(
    found: Description, seconds: FloatArray, error: FloatArray, floor: Floor
) -> Times:
    """Return the times of a pass whose rows were predicted; views launch nothing.

    Args:
        found: Kernels and views of the pass.
        seconds: Seconds of every kernel.
        error: Expected relative error of each.
        floor: What the host takes for a launch and for a view.
    """
    real = ~found.view
    launches = int(real.sum())
    views = int(found.view.sum())
    if len(found.owner):
        kernel = real[found.owner]
    else:
        kernel = np.zeros(0, dtype=np.bool_)
    return Times(
        float(seconds[kernel].sum()) + launches * floor.gap,
        launches * floor.forward + views * floor.view,
        launches * floor.backward + views * floor.view,
        float((seconds * error)[kernel].sum()),
    )


def _call_key(graph: CallGraph, call: int) -> object:
    """Return what decides the kernels of a call: its function, arguments, shapes and types."""
    it = graph.calls[call]

    def place(leaf: object) -> object:
        if not isinstance(leaf, CallRef):
            return repr(leaf)
        info = graph.values[leaf.value]
        return info.shape, str(info.dtype), info.gradient, info.source == PARAMETER

    leaves = tuple(place(x) for x in pytree.tree_leaves((it.args, it.kwargs)))
    return it.kind, str(it.function), leaves, it.gradient


def example_corners(batch: int) -> tuple[int, ...]:
    """Return the numbers of examples to record at: the least two divisors of the batch above 1.

    If there are no two, they are 1 and the batch.
    """
    divisors = list_divisors(batch)[1:]
    if len(divisors) > 1:
        return tuple(divisors[:2])
    return tuple(dict.fromkeys((1, batch)))


def shard_corners(shards: int) -> tuple[int, ...]:
    """Return the numbers of shards to record at: 2 and 4 for 8, 16 and so on, else their own."""
    if shards > 4 and shards & (shards - 1) == 0:
        return (2, 4)
    return (shards,)


def between(first: Recorded, second: Recorded, at: float) -> Recorded | None:
    """Return the part whose sizes are on the line through two recordings; None if their ops differ.

    Args:
        first: A recording at one corner.
        second: Another one of the same call.
        at: Position on the line: 0 is the first, 1 the second; it may lie outside of both.
    """
    passes = []
    for name in ("forward", "backward", "whole"):
        mixed = _describe(getattr(first, name), getattr(second, name), at)
        if mixed is None:
            return None
        passes.append(mixed)
    if len(first.sizes) != len(second.sizes) or first.reads != second.reads:
        return None
    if first.results != second.results:
        return None
    inner = float(_interpolate_counts([first.inner], [second.inner], at)[0])
    sizes = _interpolate_counts(first.sizes, second.sizes, at)
    return replace(
        first,
        forward=passes[0],
        backward=passes[1],
        whole=passes[2],
        inner=inner,
        sizes=sizes,
    )


def _describe(first: Description, second: Description, at: float) -> Description | None:
    one = first.rows
    second_rows = second.rows
    same = (
        np.array_equal(one.op, second_rows.op)
        and np.array_equal(one.dtype, second_rows.dtype)
        and np.array_equal(first.view, second.view)
        and np.array_equal(first.owner, second.owner)
    )
    if not same:
        return None
    sizes = np.maximum(_interpolate_counts(one.sizes, second_rows.sizes, at), 0.0)
    rows = replace(
        one, sizes=sizes, bytes=_interpolate_counts(one.bytes, second_rows.bytes, at)
    )
    return Description(rows, np.arange(len(one)), first.owner, first.view)


def _interpolate_counts(
    first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray, at: float
) -> np.ndarray:
    """Return the whole numbers, 0 at least, on the line through two."""
    one = np.asarray(first, dtype=np.float64)
    second_array = np.asarray(second, dtype=np.float64)
    return np.maximum(np.rint(one + at * (second_array - one)), 0.0)
