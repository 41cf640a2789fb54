"""Parts of calls that are computed from few recordings are those that recording itself gives."""

from collections import Counter

import pytest

from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments import parts
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.plans.segments.parts import between, example_corners, shard_corners
from gnnplace.problem.cluster.presets import make_preset

CLUSTER = make_preset("nvlink-a100-8")
GPT2 = "gpt2?layers=2&width=256&heads=16&vocabulary=512&length=64&batch=32"
PASSES = ("forward", "backward", "whole")


def test_corners_are_divisors_and_small():
    assert example_corners(64) == (2, 4)
    assert example_corners(15) == (3, 5)
    assert example_corners(7) == (1, 7)
    assert example_corners(1) == (1,)
    assert [shard_corners(t) for t in (2, 3, 4, 8, 16)] == [
        (2,),
        (3,),
        (4,),
        (2, 4),
        (2, 4),
    ]


SIZES = ((1, 8), (2, 8), (8, 8), (4, 2))
SELDOM = {"vit?batch=8": (), "unet?batch=8": ((2, 8),), "seq2seq?batch=8": ()}
ALWAYS = {GPT2: ((8, 8), (4, 2)), **SELDOM}


@pytest.mark.parametrize(
    ("spec", "shards", "examples"),
    [
        pytest.param(spec, *size, marks=() if size in always else pytest.mark.campaign)
        for spec, always in ALWAYS.items()
        for size in SIZES
    ],
)
def test_sizes_are_those_of_a_recording(spec, shards, examples):
    source = capture_chain(
        TrainingJob(spec, precision="bf16-mixed"), CLUSTER
    ).source.parts
    for call, op in enumerate(source.layers.operations.ops):
        labels = [
            n for n, size in op.shape.extents if size % shards == 0 and n != op.batch
        ]
        for label in (labels or [None])[:2] if shards > 1 else [None]:
            split = (call, () if label is None else ((label, shards),), examples)
            made = source.recorded(split)
            own = source._at(split)
            assert made.largest == own.largest
            assert made.inner == own.inner
            for name in PASSES:
                assert not kernels(own, name) - kernels(made, name)
                more = kernels(made, name) - kernels(own, name)
                assert {kernel[0] for kernel in more} <= {
                    "sum",
                    "clone",
                }  # of what is one


def kernels(recorded, name):
    """How often each kernel of a pass comes."""
    rows = getattr(recorded, name).rows
    return Counter(
        zip(
            rows.op,
            rows.dtype,
            map(tuple, rows.sizes.tolist()),
            rows.bytes,
            strict=True,
        )
    )


def test_calls_are_recorded_once_for_all_sizes_of_micro_batches(monkeypatch):
    chain = capture_chain(TrainingJob(GPT2), CLUSTER)
    count = []
    real = parts.record
    monkeypatch.setattr(parts, "record", lambda *a: count.append(1) or real(*a))
    chain.costs(["a100"], (2,), 8)
    first = len(count)
    for examples in (1, 2, 4, 16, 32):
        chain.costs(["a100"], (2,), examples)
    assert 0 < first == len(count)


def test_recordings_with_other_ops_are_not_mixed():
    source = capture_chain(TrainingJob(GPT2), CLUSTER).source.parts
    kinds = {c.kind: i for i, c in enumerate(source.layers.calls.calls)}
    linear, norm = (source.recorded((kinds[k], (), 2)) for k in ("addmm", "layer_norm"))
    assert between(linear, norm, 0.5) is None
    assert (
        between(linear, linear, 3.0).whole.rows.bytes.tolist()
        == linear.whole.rows.bytes.tolist()
    )
