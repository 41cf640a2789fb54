"""GPT as Megatron-LM trains it, priced from a capture, and its published weak scaling.

Narayanan et al. (2021, arXiv 2104.04473, table 1): steps of GPT from 1.7 to 39.1 billion parameters
on 32 to 512 A100 of Selene, in half precision, everything recomputed. What is published are
TFLOP/s a GPU; seconds are 96 B s l h^2 (1 + s / 6h + V / 16 l h) of them (there, section 5.1). The
size of micro-batches is not published: the one that is predicted to be the fastest is taken. Rows
of more devices than `problem.cluster.presets` lists links for are left out.

The model is Hugging Face's with what Megatron-LM fuses: one kernel for GELU, none for dropout
beside the addition. What is otherwise than the capture has it:

* embedding, head and loss are split over the vocabulary: those of one device, over the shards;
* a layer takes the host `FLOOR` at least (forward, backward): the shortest that Sailor's profiles
  of Megatron's layers have on A100-80 and GH200, whatever the size of the layer, in the mean;
* nothing else is: kernels, links and collectives are those of `gnnplace.costs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.studies.plans.runs import Run
from gnnplace.arrays import FloatArray
from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments.chain import FASTEST, Chain, SegmentCosts, SplitChoice
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import with_slack
from gnnplace.problem.cluster.presets import make_preset

VOCABULARY = 51200
FLOOR = (1.51e-3, 1.745e-3)
"""Seconds of the host a layer, forward and backward: OPT-350M's layer in eth-easl/sailor, the least
of all micro-batches and shards: 1.8 and 1.8 ms on A100-80, 1.22 and 1.69 ms on GH-96."""
BILLION = 1e9
# Parameters in billions, heads, hidden size, layers, shards, stages, GPUs, batch, TFLOP/s a GPU.
TABLE = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137.0),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138.0),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142.0),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135.0),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138.0),
)
LENGTH = 2048
MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Host:
    """What a layer takes beside its kernels.

    Attributes:
        forward: seconds of the host.
        backward: the same.
        waiting: seconds of a pass for every doubling of its shards, who wait for one another.
        outside: seconds of a micro-batch outside of the layers.
        head: seconds a FLOP of the head's products, beside their kernels, where it is not split.
    """

    forward: float = FLOOR[0]
    backward: float = FLOOR[1]
    waiting: float = 0.0
    outside: float = 0.0
    head: float = 0.0


HOST = Host()


@dataclass(frozen=True, eq=False)
class Megatron:
    """A `plans.segments.chain.CostSource`: a captured GPT as Megatron-LM runs it.

    Attributes:
        source: the capture, which keeps what it was asked for.
        layers: which segments are of layers. [segments]
        each: segments of a layer.
        head: FLOP of the head's products an example, all three passes.
        host: what a layer takes beside its kernels.
    """

    source: Chain
    layers: FloatArray
    each: float
    head: float
    host: Host = HOST

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Costs of every segment; see `plans.segments.chain.CostSource`."""
        shards = math.prod(axes)
        found, alone = (
            self.source.costs([kind], t, examples, choice) for t in (axes, (1,))
        )
        if found is None or alone is None:
            return None
        names = ("forward", "backward", "weights", "saved", "working", "parameters")
        inside = self.layers > 0
        split = {
            n: np.where(inside, getattr(found, n), getattr(alone, n) / shards)
            for n in names
        }
        host, each = self.host, self.each
        waiting = host.waiting * np.log2(shards) / each
        forward = np.maximum(split["forward"], host.forward / each) + waiting
        both = split["backward"] + split["weights"]
        late = np.maximum(both, host.backward / each) + waiting - split["weights"]
        split["forward"] = np.where(inside, forward, split["forward"])
        whole_head = host.head * self.head * examples if shards == 1 else 0.0
        split["forward"][-1] += host.outside + whole_head
        split["backward"] = np.where(inside, late, split["backward"])
        return replace(found, **split)


def gpt(
    cluster: Cluster, hidden: int, heads: int, layers: int, length: int, batch: int,
    host: Host = HOST, attention: str = "sdpa",
) -> Chain:  # fmt: skip
    """A GPT as Megatron-LM trains it in half precision; attention in one kernel, or "eager"."""
    name = (
        f"hf:gpt2?n_layer={layers}&n_embd={hidden}&n_head={heads}&length={length}"
        f"&n_positions={length}&vocab_size={VOCABULARY}&bos_token_id=0&eos_token_id=0"
        f"&activation_function=gelu_pytorch_tanh&resid_pdrop=0.0&_attn_implementation={attention}"
    )
    chain = capture_chain(
        TrainingJob(name, batch=batch, precision="16-master", optimizer="adam"), cluster
    )
    inside = np.array(
        [any(".h." in m for m in s.modules) for s in chain.segments], dtype=float
    )
    head = 6.0 * VOCABULARY * hidden * length
    source = Megatron(chain, inside, float(inside.sum()) / layers, head, host)
    return replace(chain, source=source, _known={})


@cache
def superpod(devices: int) -> Cluster:
    """So many A100 of 80 GB in servers of eight."""
    return with_slack(make_preset(f"superpod-a100-80-{devices // 8}x8"))


def seconds_of(row: tuple[float, ...]) -> float:
    """Published seconds of a step of a row of `TABLE`."""
    _, _, h, layers, _, _, devices, batch, rate = row
    flops = 96 * batch * LENGTH * layers * h * h
    flops *= 1 + LENGTH / (6 * h) + VOCABULARY / (16 * layers * h)
    return flops / (devices * rate * 1e12)


def runs(most: int = 512) -> list[Run]:
    """Weak scaling on up to so many devices."""
    found = []
    for row in TABLE:
        size, heads, h, layers, shards, stages, devices, batch, _ = row
        if devices > most:
            continue
        cluster = superpod(int(devices))
        chain = gpt(cluster, int(h), int(heads), int(layers), LENGTH, int(batch))
        replicas = int(devices) // shards // stages
        split = f"dp={replicas},tp={shards},pp={stages},layers=equal"
        words = f"{split},recompute=full,microbatch_size="
        sizes = [m for m in MICRO_BATCHES if batch % (m * replicas) == 0]
        plans = [price_given_plan(chain, cluster, f"{words}{m}") for m in sizes]
        fits = [p for p in plans if p.feasible] or plans
        best = min(fits, key=lambda p: p.step_time)
        plan = f"{words}{best.file.microbatch_size}"
        found.append(
            Run(f"GPT {size}B, {devices} A100", plan, best.step_time, seconds_of(row))
        )
    return found
