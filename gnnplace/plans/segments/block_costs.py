"""`BlockCosts`: a captured model whose blocks are priced by a framework's kernels.

The calls of a recognised block (`segments.blocks`) together cost what the framework's kernels for
it cost: joined products, fused attention, norms with their residual, rotary positions, gates,
experts, the loss. These are the formulas of `decoders.layer`, block by block, so that a decoder
costs the same by its blocks as by its sizes. Over shards the captured seconds and bytes of a call
are scaled by the factor that the whole block has on one device.

Blocks that are not recognised, and attention that is written out, have two prices: the eager
kernels that were captured, which is how they run unless somebody changes that, and one fused kernel
a module, which reads its inputs and writes its results. `is_fused` says which price the costs have.
Launches of eager kernels count as the host's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import Framework, Kernels, Shape
from gnnplace.plans.plan import find_layer
from gnnplace.plans.segments.blocks import (
    ACTIVATION,
    ATTENTION,
    BETWEEN,
    CHOICE,
    EXPERTS,
    GATE,
    KEYS,
    LOSS,
    MULTIHEAD,
    NORM,
    PRODUCT,
    QUERIES,
    RESIDUAL,
    Block,
    BlockFinder,
    find_blocks,
    join_modules,
    module_pattern,
)
from gnnplace.plans.segments.chain import FASTEST, Basis, SegmentCosts, SplitChoice
from gnnplace.plans.segments.parts import Part, Times
from gnnplace.plans.segments.pricing import Grid, ModelCosts, Split
from gnnplace.plans.segments.recording import PaperShare, Recorded
from gnnplace.sharding import (
    Configuration,
    LayerGraph,
    count_layout_parts,
    count_parts,
    get_result_layout,
    read_layout,
)
from gnnplace.tracing import PARAMETER, local_shape

HALF_BYTES = 2.0
"""Bytes of a value in half precision."""
GELU = (4.0, 6.0)
"""Bytes a value that an activation passes forward and backward; see `decoders.layer`."""
LAYER_GELU = 4.0
"""Values of an activation for each of a plain layer's width, in the framework's constants."""
NORM_SHARE, RESIDUAL_SHARE = 0.2, 0.3
"""Shares of one norm and one residual in the bytes that pass beside a layer's products: 4 and 6
bytes a value, twice a layer."""
ATTENTION_LAUNCHES, PIECE_LAUNCHES = 0.4, 0.15
"""Shares of attention, and of one norm or residual, in the launches of a layer."""
LATE_BYTES = 6.0
"""Bytes of the stream that recomputation of a layer leaves out, with its last product."""
FUSED_BACKWARD = 2.0
"""Times the bytes of the forward pass that the backward pass of a fused kernel reads and writes."""
HIDDEN_SHARE = 1 / 2
"""Share of a backward pass's exchanges over shards that products run beside: of a gather and a
scatter the latter (`decoders.layer`)."""
WHOLE = "whole"  # a border that every shard has in full
FUSIBLE = (ATTENTION, MULTIHEAD, BETWEEN)
"""Kinds of blocks that one fused kernel may replace; others are one kernel a call already."""
LARGE: Shape = (8192, 8192, 8192)
"""Rows, columns and summed length of a product that runs at a GPU's full rate."""
LEAST_SHARE = 1e-3
"""Share of a step's seconds below which a module that is not recognised is not named."""


@dataclass
class CallKept:
    """What a call of a block keeps of a whole batch for the backward pass.

    Attributes:
        tensors: Values that it reads or makes.
        inner: Other bytes.
    """

    tensors: set[int] = field(default_factory=set)
    inner: float = 0.0


class BlockSeconds(NamedTuple):
    """Seconds of a block's passes on one device.

    Attributes:
        forward: Seconds of the forward pass.
        activations: Seconds of the gradients that cannot wait.
        gradients: Seconds of all gradients.
    """

    forward: float
    activations: float
    gradients: float

    @property
    def total(self) -> float:
        """Return the seconds of both passes."""
        return self.forward + self.gradients

    def times(self, factors: BlockSeconds) -> BlockSeconds:
        """Return the seconds, each pass times a factor."""
        return BlockSeconds(
            self.forward * factors.forward,
            self.activations * factors.activations,
            self.gradients * factors.gradients,
        )

    def plus(self, seconds: BlockSeconds, factor: float = 1.0) -> BlockSeconds:
        """Return the seconds and so many times others."""
        return BlockSeconds(
            self.forward + factor * seconds.forward,
            self.activations + factor * seconds.activations,
            self.gradients + factor * seconds.gradients,
        )


@dataclass(frozen=True)
class Recognition:
    """What of a captured model's step a framework's kernels price.

    Attributes:
        share: Share of the seconds of a micro-batch's passes, those of eager kernels as captured.
        unrecognised: Modules that are priced as captured, those with most seconds first.
        written_out: Modules whose attention is recognised and written out.
        eager_over_fused: Times the seconds of one fused kernel each that both kinds take.
    """

    share: float
    unrecognised: tuple[str, ...]
    written_out: tuple[str, ...]
    eager_over_fused: float

    @property
    def has_two_prices(self) -> bool:
        """Return whether any module costs otherwise as it was captured than fused."""
        return bool(self.unrecognised or self.written_out)

    def line(self) -> str:
        """Format the share and the modules in one line."""
        text = f"recognised: {self.share:.1%} of a micro-batch's seconds"
        if self.unrecognised:
            text += f"; not recognised: {', '.join(self.unrecognised)}"
        if self.written_out:
            text += f"; attention written out: {', '.join(self.written_out)}"
        if self.has_two_prices:
            text += (
                f"; as captured these take {self.eager_over_fused:.1f} times one fused kernel "
                "each, and the interval spans both"
            )
        return text


@dataclass(eq=False)
class BlockCosts(ModelCosts):
    """The costs of a captured model by its blocks; attributes as of `ModelCosts`, and these.

    Attributes:
        framework: The framework whose kernels price what is recognised.
        is_fused: Whether what is not recognised, or written out, is one fused kernel a module.
    """

    basis: ClassVar[Basis] = "blocks"

    framework: Framework
    is_fused: bool = False
    _captured: dict[object, BlockSeconds] = field(init=False, default_factory=dict)
    _ratios: dict[object, float] = field(init=False, default_factory=dict)
    _on_kind: dict[str, Framework] = field(init=False, default_factory=dict)
    _parts_of_calls: dict[object, Part] = field(init=False, default_factory=dict)
    _streamed: dict[object, tuple[BlockSeconds, BlockSeconds, BlockSeconds]] = field(
        init=False, default_factory=dict
    )

    @cached_property
    def finder(self) -> BlockFinder:
        """Return the reader of the model's blocks."""
        return BlockFinder(self.layers, self.cuts)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Return the blocks of the model; what is fused of one module is one block."""
        blocks = find_blocks(self.layers, self.cuts)
        return join_modules(blocks) if self.is_fused else blocks

    @property
    def has_recognised_layers(self) -> bool:
        """Return whether a layer has a product or an attention that is recognised."""
        return any(
            block.is_recognised
            and block.kind in (PRODUCT, ATTENTION, MULTIHEAD)
            and find_layer(block.module)
            for block in self.blocks
        )

    @property
    def border_bytes(self) -> FloatArray:
        """Return the bytes an example of what crosses every cut. [segments + 1]"""
        values = self.layers.operations.values
        crossing = [
            sum(values[value].bytes for value in crossing) / self.batch
            for crossing in self.cuts.crossing
        ]
        return np.array([*crossing, 0.0])

    @cached_property
    def _block_of(self) -> dict[int, int]:
        """Return the index of every call's block; calls beside segments have none."""
        return {call: k for k, block in enumerate(self.blocks) for call in block.calls}

    @cached_property
    def _is_gated(self) -> bool:
        """Return whether the model's feed-forwards have gates, as constants distinguish."""
        return any(
            block.kind == EXPERTS or any(piece.kind == GATE for piece in block.pieces)
            for block in self.blocks
        )

    def with_framework(self, framework: Framework) -> BlockCosts:
        """Return the same model under another framework."""
        return self._copy(framework, is_fused=self.is_fused)

    def fused(self) -> BlockCosts:
        """Return the same model with one fused kernel for each module of two prices."""
        return self._copy(self.framework, is_fused=True)

    def _copy(self, framework: Framework, *, is_fused: bool) -> BlockCosts:
        """Return the same model, with its recordings, under other terms."""
        costs = BlockCosts(
            layers=self.layers,
            cuts=self.cuts,
            fabric=self.fabric,
            batch=self.batch,
            precision=self.precision,
            optimizer=self.optimizer,
            framework=framework,
            is_fused=is_fused,
        )
        costs.parts = self.parts
        return costs

    def _get_framework(self, kind: str) -> Framework:
        """Return the framework with the kernels of a kind of device."""
        if kind not in self._on_kind:
            self._on_kind[kind] = self.framework.with_kernels_of(kind)
        return self._on_kind[kind]

    # Seconds.

    def part(self, call: int, split: Configuration, kind: str, grid: Grid) -> Part:
        """Return the part of a call on one device, with its share of its block's seconds.

        Arguments are those of `ModelCosts.part`. Launches are no part of it.
        """
        key = call, split, kind, grid
        if key not in self._parts_of_calls:
            self._parts_of_calls[key] = self._part(call, split, kind, grid)
        return self._parts_of_calls[key]

    def _part(self, call: int, split: Configuration, kind: str, grid: Grid) -> Part:
        """Price a part of a call; see `part`."""
        captured = super().part(call, split, kind, grid)
        index = self._block_of.get(call)
        seconds = BlockSeconds(*(time.kernels for time in captured.times))
        if index is not None and not self.is_as_captured(self.blocks[index]):
            block, counts = self.blocks[index], count_parts(split, grid[0])
            examples = self.batch // grid[1]
            if block.kind == PRODUCT:
                framework = self._get_framework(kind)
                seconds = self._product_part(block, call, framework, counts, examples)
            elif block.kind in (EXPERTS, MULTIHEAD):
                share = self._share(index, kind, examples, BlockSeconds(*seconds))
                seconds = self.block_seconds(block, kind, examples).times(share)
            else:
                seconds = self._time_streamed_part(index, call, kind, counts, examples)
        times = tuple(
            Times(
                kernels=priced,
                early=0.0,
                late=0.0,
                missed=time.missed * priced / max(time.kernels, 1e-30),
            )
            for time, priced in zip(captured.times, seconds, strict=True)
        )
        recorded = self._recorded(call, captured.recorded, split, grid)
        return Part(recorded, (times[0], times[1], times[2]))

    def is_as_captured(self, block: Block) -> bool:
        """Return whether a block's price is that of its captured kernels."""
        return block.has_two_prices and not (self.is_fused and block.kind in FUSIBLE)

    def _share(
        self, index: int, kind: str, examples: int, part: BlockSeconds
    ) -> BlockSeconds:
        """Return what a part of a call is of its block's captured seconds, by pass.

        Args:
            index: The block.
            kind: The kind of device.
            examples: Examples of a micro-batch.
            part: Captured seconds of the part.
        """
        key = index, kind, examples
        if key not in self._captured:
            block = self.blocks[index]
            self._captured[key] = self.sum_captured_seconds(block, kind, examples)
        block_seconds = self._captured[key]
        return BlockSeconds(
            *(
                seconds / total if total > 0 else 0.0
                for seconds, total in zip(part, block_seconds, strict=True)
            )
        )

    def _time_streamed_part(
        self,
        index: int,
        call: int,
        kind: str,
        counts: dict[str, int],
        examples: int,
    ) -> BlockSeconds:
        """Return the seconds of a part of a call whose block takes as long as it has elements.

        Calls share their block's seconds as they do when they are captured. Gaps between kernels
        are as many on every shard.

        Args:
            index: The block.
            call: A call of it.
            kind: The kind of device.
            counts: Parts of every label that shards divide.
            examples: Examples of a micro-batch.
        """
        key = call, kind, examples
        if key not in self._streamed:
            block = self.blocks[index]
            grid = ((1,), self.batch // examples)
            unsplit = super().part(call, (None,), kind, grid)
            captured = BlockSeconds(*(time.kernels for time in unsplit.times))
            share = self._share(index, kind, examples, captured)
            gaps = self._gaps(block, self._get_framework(kind))
            work = self.block_seconds(block, kind, examples).plus(gaps, -1.0)
            self._streamed[key] = work, gaps, share
        work, gaps, share = self._streamed[key]
        ratio = self._find_element_part(call, counts)
        return work.times(BlockSeconds(ratio, ratio, ratio)).plus(gaps).times(share)

    def _find_element_part(self, call: int, counts: dict[str, int]) -> float:
        """Return which part of the elements of a call's tensors a shard has."""
        rule, values = self.layers.rules[call], self.layers.calls.values
        graph_call = self.layers.calls.calls[call]
        total = local = 0
        for tensors, axes in (
            (graph_call.reads, rule.reads),
            (graph_call.results, rule.results),
        ):
            for value, labels in zip(tensors, axes, strict=True):
                if values[value].source != PARAMETER:
                    total += self._elements(value)
                    shape = local_shape(labels, values[value].shape, PaperShare(counts))
                    local += math.prod(shape)
        return local / total if total else 1.0

    def _gaps(self, block: Block, framework: Framework) -> BlockSeconds:
        """Return the seconds of gaps between the kernels that a block has in a layer."""
        is_attention = block.kind in (ATTENTION, MULTIHEAD)
        share = ATTENTION_LAUNCHES if is_attention else 0.0
        for piece in block.pieces:
            share += PIECE_LAUNCHES if piece.kind in (NORM, RESIDUAL) else 0.0
        gap = share * framework.kernels.rates["launch"] * framework.constants["gap"]
        kind = "gated" if self._is_gated else "plain"
        forward = gap * framework.constants[f"{kind}_launches_forward"]
        backward = gap * framework.constants[f"{kind}_launches_backward"]
        return BlockSeconds(forward, backward, backward)

    def sum_captured_seconds(
        self, block: Block, kind: str, examples: int
    ) -> BlockSeconds:
        """Return the seconds of a block's kernels as they were captured, on one device."""
        grid = ((1,), self.batch // examples)
        parts = [
            super(BlockCosts, self).part(k, (None,), kind, grid) for k in block.calls
        ]
        return BlockSeconds(
            sum(part.forward.kernels for part in parts),
            sum(part.early.kernels for part in parts),
            sum(part.whole.kernels for part in parts),
        )

    def block_seconds(self, block: Block, kind: str, examples: int) -> BlockSeconds:
        """Return the seconds of a block on one device, by the framework's kernels.

        Args:
            block: The block. One that is not recognised is taken as one fused kernel.
            kind: The kind of device.
            examples: Examples of a micro-batch.
        """
        framework, scale = self._get_framework(kind), examples / self.batch
        if block.kind == PRODUCT:
            return self._product_seconds(block, framework.kernels, scale)
        if block.kind == ATTENTION:
            return self._attention_seconds(block, framework, scale)
        if block.kind == MULTIHEAD:
            return self._multihead_seconds(block, framework, scale)
        if block.kind == EXPERTS:
            return self._expert_seconds(block, framework, scale)
        if block.kind == LOSS:
            logits = self._elements(self.layers.calls.calls[block.calls[0]].reads[0])
            return _compute_streaming_seconds(
                framework,
                framework.constants["logit_forward"] * logits * scale,
                framework.constants["logit_backward"] * logits * scale,
            )
        if block.is_recognised:
            return self._piece_seconds(block, framework, scale)
        return self._time_fused(block, framework, scale)

    def _time_fused(
        self, block: Block, framework: Framework, scale: float
    ) -> BlockSeconds:
        """Return the seconds of what is not recognised as one fused kernel.

        It takes as long as its bytes pass, or as its products take at the rate of large ones.
        """
        passed = HALF_BYTES * scale * sum(self._elements(v) for v in self._outer(block))
        flops = scale * sum(self.layers.rules[k].flops for k in block.calls)
        rows, columns, inner = LARGE
        rate = 2.0 * rows * columns * inner / framework.kernels.products([LARGE])
        streamed = _compute_streaming_seconds(
            framework, passed, FUSED_BACKWARD * passed
        )
        backward = max(streamed.gradients, 2.0 * flops / rate)
        return BlockSeconds(max(streamed.forward, flops / rate), backward, backward)

    def _elements(self, value: int) -> int:
        """Return the number of elements of a tensor, of the whole batch."""
        return self.finder.elements(value)

    def _outer(self, block: Block) -> list[int]:
        """Return the tensors that a block reads of others, or makes for them."""
        calls = self.layers.calls.calls
        inside = set(block.calls)
        results = {v for k in block.calls for v in calls[k].results}
        reads = {v for k in block.calls for v in calls[k].reads} - results
        readers = self.finder.readers
        leaving = {
            v for v in results if any(k not in inside for k in readers.get(v, ()))
        }
        return sorted(reads | leaving)

    def _product_shape(self, block: Block) -> tuple[float, int, int]:
        """Return rows of the whole batch, columns and summed length of a joined product."""
        calls, values = self.layers.calls.calls, self.layers.calls.values
        columns = inner = 0
        for k in block.calls:
            matrix = self.finder.find_matrix(k)
            assert matrix is not None
            outputs, inputs = values[matrix].shape
            if calls[k].kind != "linear":  # addmm has a column an output
                outputs, inputs = inputs, outputs
            columns += outputs
            inner = inputs
        rows = self._elements(self.finder.find_stream(block.calls[0])) / inner
        return rows, columns, inner

    def _product_seconds(
        self, block: Block, kernels: Kernels, scale: float
    ) -> BlockSeconds:
        """Return the seconds of a joined product."""
        count, columns, inner = self._product_shape(block)
        shape = max(1, round(count * scale)), columns, inner
        return self._time_shape(block, kernels, shape)

    def _time_shape(self, block: Block, kernels: Kernels, shape: Shape) -> BlockSeconds:
        """Return the seconds of a product and of its gradients."""
        rows, columns, inner = shape
        activations = kernels.products([(rows, inner, columns)])
        gradients = activations
        matrix = self.finder.find_matrix(block.calls[0])
        assert matrix is not None
        if self.layers.calls.values[self.finder.root(matrix)].gradient:
            gradients += kernels.products([(columns, inner, rows)])
        return BlockSeconds(kernels.products([shape]), activations, gradients)

    def _product_part(
        self,
        block: Block,
        call: int,
        framework: Framework,
        counts: dict[str, int],
        examples: int,
    ) -> BlockSeconds:
        """Return the seconds of a call's part of a joined product that shards divide.

        Args:
            block: The joined product.
            call: One of its calls.
            framework: The framework on the device.
            counts: Parts of every label that shards divide.
            examples: Examples of a micro-batch.
        """
        rule, values = self.layers.rules[call], self.layers.calls.values
        graph_call, share = self.layers.calls.calls[call], PaperShare(counts)
        stream, matrix = self.finder.find_stream(call), self.finder.find_matrix(call)
        labels = dict(zip(graph_call.reads, rule.reads, strict=True))
        assert matrix is not None
        local = local_shape(labels[matrix], values[matrix].shape, share)
        outputs, inner = local if graph_call.kind == "linear" else local[::-1]
        elements = math.prod(local_shape(labels[stream], values[stream].shape, share))
        rows = max(1, round(elements / inner * examples / self.batch))
        # The calls of a joined product are divided alike, and share it by their columns.
        _, all_columns, _ = self._product_shape(block)
        all_outputs = values[matrix].shape[0 if graph_call.kind == "linear" else 1]
        columns = max(1, round(all_columns * outputs / all_outputs))
        joined = self._time_shape(block, framework.kernels, (rows, columns, inner))
        part = all_outputs / all_columns
        return joined.times(BlockSeconds(part, part, part))

    def _attention_sizes(self, block: Block) -> tuple[float, int, int, float]:
        """Return the sizes of an attention block.

        The block is one call of fused attention, or the calls from the product of queries and keys
        to the product of weights and values.

        Returns:
            Rows of queries (examples x heads x tokens), tokens of the keys, and the widths of a
            head's keys and of its values.
        """
        calls = self.layers.calls.calls
        values = self.layers.calls.values
        first = calls[block.calls[0]]
        last = calls[block.calls[-1]]
        queries = first.reads[0]
        key_width = values[queries].shape[-1]
        rows = self._elements(queries) / key_width
        if len(block.calls) == 1:
            keys = first.reads[1]
            key_tokens = values[keys].shape[-2]
        else:
            # The first call's result has a score for each row and each key.
            key_tokens = round(self._elements(first.results[0]) / rows)
        value_width = self._elements(last.results[0]) / rows
        return rows, key_tokens, key_width, value_width

    def _attention_seconds(
        self, block: Block, framework: Framework, scale: float
    ) -> BlockSeconds:
        """Return the seconds of fused attention; what is not causal has twice the operations."""
        rows, length, keys, values = self._attention_sizes(block)
        seconds = framework.kernels.attend(
            rows * scale, length, (keys + values) / 2, keys
        )
        if not block.is_causal:
            seconds *= 2.0
        backward = framework.constants["attention_backward"] * seconds
        work = BlockSeconds(seconds, backward, backward)
        return work.plus(self._gaps(block, framework))

    def _multihead_sizes(self, block: Block) -> tuple[float, float, int, int, bool]:
        """Return rows of queries and of keys, tokens, width, and whether they are one tensor."""
        values = self.layers.calls.values
        queries, keys = self.layers.calls.calls[block.calls[0]].reads[:2]
        shape = values[queries].shape
        width = shape[-1]
        is_joined = self.finder.root(queries) == self.finder.root(keys)
        return (
            self._elements(queries) / width,
            self._elements(keys) / width,
            values[keys].shape[0],
            width,
            is_joined,
        )

    def _multihead_seconds(
        self, block: Block, framework: Framework, scale: float
    ) -> BlockSeconds:
        """Return the seconds of PyTorch's own attention: its products, and fused attention."""
        queries, keys, length, width, is_joined = self._multihead_sizes(block)
        kernels = framework.kernels
        rows = max(1, round(queries * scale))
        shapes: list[Shape] = [(rows, width, width)]
        if is_joined:
            shapes.append((rows, 3 * width, width))
        else:
            shapes += [(rows, width, width), (round(keys * scale), 2 * width, width)]
        forward = kernels.products(shapes)
        backward = kernels.products([(m, k, n) for m, n, k in shapes])
        backward += kernels.products([(n, k, m) for m, n, k in shapes])
        heads = self.finder.find_num_heads(block.calls[0])
        attention = kernels.attend(rows, length, width, width // heads)
        if not block.is_causal:
            attention *= 2.0
        backward += framework.constants["attention_backward"] * attention
        work = BlockSeconds(forward + attention, backward, backward)
        return work.plus(self._gaps(block, framework))

    def _expert_sizes(self, block: Block) -> tuple[float, int, int, int, int]:
        """Return rows of all experts, experts, and widths of stream, inside, and first product."""
        call, values = self.layers.calls.calls[block.calls[0]], self.layers.calls.values
        stacks = self.finder.expert_stacks(block.calls[0])
        experts = stacks[0][0]
        hidden = values[call.reads[0]].shape[-1]
        sizes = [first * second // hidden for _, first, second in stacks]
        num_rows = next(
            self._elements(value)
            for value in call.reads
            if not values[value].dtype.is_floating_point
        )
        return num_rows, experts, hidden, min(sizes), max(sizes)

    def _expert_seconds(
        self, block: Block, framework: Framework, scale: float
    ) -> BlockSeconds:
        """Return the seconds of a mixture's experts, each with as many rows."""
        count, experts, hidden, width, wide = self._expert_sizes(block)
        kernels, constants, rows = framework.kernels, framework.constants, count * scale
        expert_rows = max(1, round(rows / experts))
        shapes = [(expert_rows, wide, hidden), (expert_rows, hidden, width)]
        forward = experts * kernels.products(shapes)
        backward = experts * kernels.products([(m, k, n) for m, n, k in shapes])
        backward += experts * kernels.products([(n, k, m) for m, n, k in shapes])
        passed = rows * (12 * hidden + constants["chosen_forward"] * width)
        returned = rows * (16 * hidden + constants["chosen_backward"] * width)
        forward += kernels.stream(passed)
        backward += kernels.stream(returned)
        return BlockSeconds(forward, backward, backward)

    def _piece_seconds(
        self, block: Block, framework: Framework, scale: float
    ) -> BlockSeconds:
        """Return the seconds of what lies between other blocks."""
        forward = backward = 0.0
        for piece in block.pieces:
            passed, returned = self._piece_bytes(piece.kind, framework)
            forward += passed * self._elements(piece.value) * scale
            backward += returned * self._elements(piece.value) * scale
        work = _compute_streaming_seconds(framework, forward, backward)
        return work.plus(self._gaps(block, framework))

    def _piece_bytes(self, kind: str, framework: Framework) -> tuple[float, float]:
        """Return the bytes a value that a piece passes, forward and backward."""
        constants = framework.constants
        if kind in (NORM, RESIDUAL):
            share = NORM_SHARE if kind == NORM else RESIDUAL_SHARE
            if self._is_gated:
                return (
                    share * constants["gated_forward"],
                    share * constants["gated_backward"],
                )
            return (
                share * (constants["plain_forward"] - LAYER_GELU * GELU[0]),
                share * (constants["plain_backward"] - LAYER_GELU * GELU[1]),
            )
        if kind == ACTIVATION:
            return GELU
        if kind == GATE:
            return constants["inside_forward"], constants["inside_backward"]
        if kind == CHOICE:
            return 0.0, 0.0
        assert kind in (QUERIES, KEYS), kind
        passed = constants["gated_queries" if kind == QUERIES else "gated_keys"]
        return passed, passed

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Return the costs of every segment; see `plans.segments.chain.CostSource`."""
        costs = super().costs(kind, axes, examples, choice)
        if costs is None:
            return None
        columns = self._columns(kind, int(np.prod(axes)), examples, costs)
        return replace(costs, **columns)

    def _columns(
        self, kind: str, shards: int, examples: int, costs: SegmentCosts
    ) -> dict[str, FloatArray]:
        """Return the columns that a framework's terms have and captured costs have not.

        Args:
            kind: The kind of device.
            shards: Shards that layers are split over.
            examples: Examples of a micro-batch on each replica.
            costs: The costs without them.
        """
        framework, scale = self._get_framework(kind), examples / self.batch
        constants, layers = framework.constants, self._segment_layers
        count = len(self.cuts.runs)
        host, late, widest, loss, largest = np.zeros((5, count))
        shares = np.array([self._matrix_shares(k) for k in range(count)])
        for block in self.blocks:
            at = block.segment
            if self.is_as_captured(block):
                host[at] += self._host_seconds(block, kind, examples)
            if block.kind == PRODUCT:
                rows, columns, inner = self._product_shape(block)
                widest[at] = max(widest[at], rows * columns * scale)
                largest[at] = max(largest[at], columns * inner)
                seconds = self.block_seconds(block, kind, examples).forward
                streamed = framework.kernels.stream(
                    LATE_BYTES * rows * min(columns, inner) * scale
                )
                late[at] = (seconds + streamed) / shards
            elif block.kind == LOSS:
                call = self.layers.calls.calls[block.calls[0]]
                logits = constants["logit_kept"] * self._elements(call.reads[0]) * scale
                loss[at] = (logits + HALF_BYTES * costs.entering[at] * shards) / shards
        # The last product of a layer is not made again where recomputation stops early.
        recomputed = costs.forward.copy()
        for layer in np.unique(layers[layers >= 0]):
            inside = np.flatnonzero(layers == layer)
            widest[inside] = widest[inside].max()
            last = inside[np.flatnonzero(late[inside])[-1:]]
            recomputed[last] -= constants["early_stop"] * late[last]
        working = constants["passing"] * (
            2 * HALF_BYTES * widest / shards + 4.0 * costs.entering
        )
        working = np.maximum(
            working, loss + 3.0 * constants["passing"] * costs.entering
        )
        return {
            "update": np.zeros(count),
            "recomputed": np.maximum(recomputed, 0.0),
            "host": host + constants["host_layer"] * self._layer_shares,
            "working": working,
            "loss": loss,
            "largest": np.full(count, largest.max(initial=0.0)),
            "matrices": costs.parameters * shares[:, 0],
            "experts": costs.parameters * shares[:, 1],
            "frozen_bytes": HALF_BYTES * costs.frozen,
        }

    @cached_property
    def _segment_layers(self) -> FloatArray:
        """Return a number for every segment's layer, negative outside of layers. [segments]"""
        names = [
            next((find_layer(m) for m in segment.modules if find_layer(m)), "")
            for segment in self.cuts.segments
        ]
        order = {name: k for k, name in enumerate(dict.fromkeys(names))}
        return np.array([order[name] if name else -1.0 for name in names])

    @cached_property
    def _layer_shares(self) -> FloatArray:
        """Return the share of its layer that every segment is; 0 outside of layers. [segments]"""
        layers = self._segment_layers
        counts = np.array([(layers == layer).sum() for layer in layers])
        return np.where(layers >= 0, 1.0 / counts, 0.0)

    def _matrix_shares(self, segment: int) -> tuple[float, float]:
        """Return the shares of matrices of layers, and of experts, in a segment's parameters."""
        calls, values = self.layers.calls.calls, self.layers.calls.values
        is_layer = self._segment_layers[segment] >= 0
        total = matrices = experts = 0.0
        counted: set[int] = set()
        for k in self._calls(segment):
            for value in calls[k].reads:
                info = values[value]
                if info.source != PARAMETER or not info.gradient or value in counted:
                    continue
                counted.add(value)
                elements = self._elements(value)
                total += elements
                if len(info.shape) > 1 and is_layer:
                    matrices += elements
                if len(info.shape) == 3 and self._reaches_experts(value):
                    experts += elements
        return matrices / max(total, 1.0), experts / max(total, 1.0)

    @cached_property
    def _expert_parameters(self) -> frozenset[int]:
        """Return the parameters that experts read."""
        calls = self.layers.calls.calls
        return frozenset(
            self.finder.root(value)
            for block in self.blocks
            if block.kind == EXPERTS
            for value in calls[block.calls[0]].reads
        )

    def _reaches_experts(self, value: int) -> bool:
        """Return whether experts read a parameter."""
        return value in self._expert_parameters

    def _host_seconds(self, block: Block, kind: str, examples: int) -> float:
        """Return the seconds that the host takes to launch a block's captured kernels."""
        grid = ((1,), self.batch // examples)
        parts = [
            super(BlockCosts, self).part(k, (None,), kind, grid) for k in block.calls
        ]
        return sum(part.forward.early + part.whole.late for part in parts)

    def beside(
        self,
        calls: Sequence[int],
        split: Sequence[Configuration],
        kind: str,
        grid: Grid,
    ) -> tuple[Times, Times]:
        """Return no times: the framework prices updates, and sums of gradients with its pieces."""
        none = Times(kernels=0.0, early=0.0, late=0.0, missed=0.0)
        return none, none

    def _split(self, number: int, kind: str, grid: Grid, choice: SplitChoice) -> Split:
        """Return the labels of a segment's calls, and seconds of its collectives.

        Of a gather and a scatter that the backward pass has beside a pair of products the scatter
        runs under a product, where tokens are split, and so does what is gathered again. Arguments
        are those of `ModelCosts`.
        """
        split, (forward, backward, attention, gathered) = super()._split(
            number, kind, grid, choice
        )
        framework = self._get_framework(kind)
        hides = choice.border != WHOLE and framework.constants["hides_backward"] > 0
        if backward > 0 and hides:
            products = sum(
                self.part(k, labels, kind, grid).whole.kernels
                for k, labels in zip(self._calls(number), split, strict=True)
                if self.blocks[self._block_of[k]].kind == PRODUCT
            )
            hidden = HIDDEN_SHARE * backward
            backward -= hidden
            backward += float(framework.hidden_seconds(hidden, products))
            gathered = float(framework.hidden_seconds(gathered, products))
        return split, (forward, backward, attention, gathered)

    # Bytes.

    @cached_property
    def _kept_by_call(self) -> dict[int, CallKept]:
        """Return what calls of blocks that a framework prices keep of a batch, by call."""
        saved: dict[int, CallKept] = {}
        for block in self.blocks:
            if self.is_as_captured(block):
                continue
            saved.update((k, CallKept()) for k in block.calls if k not in saved)
            tensors, inner = self._find_block_saved(block, 1.0)
            for tensor in tensors:
                place = self._find_keeping_call(block, tensor)
                if place is None:
                    inner += HALF_BYTES * self._elements(tensor)
                else:
                    saved.setdefault(place[0], CallKept()).tensors.add(place[1])
            saved[block.calls[0]].inner += inner
        return saved

    def _find_keeping_call(self, block: Block, tensor: int) -> tuple[int, int] | None:
        """Return the call that reads or makes a tensor that a block keeps, and its own value.

        Calls of the block come first, then those of its segment.
        """
        root, calls = self.finder.root(tensor), self.layers.calls.calls
        for calls_of in (block.calls, self._calls(block.segment)):
            for k in calls_of:
                for value in (*calls[k].reads, *calls[k].results):
                    if self.finder.root(value) == root:
                        return k, value
        return None

    def iterate_saved_values(
        self, index: int, chosen: Configuration, found: Recorded, grid: Grid
    ) -> Iterator[tuple[int, float]]:
        """Yield what a call keeps: in half precision where its block is a framework's."""
        by_block = self._kept_by_call.get(index)
        if by_block is None or self._is_call_as_captured(index):
            yield from super().iterate_saved_values(index, chosen, found, grid)
        if by_block is None:
            return
        call, rule = self.layers.calls.calls[index], self.layers.rules[index]
        results = zip(call.results, rule.results, strict=True)
        reads = zip(call.reads, rule.reads, strict=True)
        layouts = {value: get_result_layout(axes, chosen) for value, axes in results}
        layouts |= {value: read_layout(axes, chosen) for value, axes in reads}
        for value in by_block.tensors:
            size = HALF_BYTES * self._elements(value) / grid[1]
            yield value, size / count_layout_parts(layouts[value], grid[0])

    def roots(self, calls: Sequence[int]) -> dict[int, int]:
        """Return the tensor that each result of some calls is but for its shape and type."""
        results = (v for k in calls for v in self.layers.calls.calls[k].results)
        return {value: self.finder.root(value) for value in results}

    def _is_call_as_captured(self, call: int) -> bool:
        """Return whether a call's price is that of its captured kernels."""
        index = self._block_of.get(call)
        return index is None or self.is_as_captured(self.blocks[index])

    def _recorded(
        self, call: int, recorded: Recorded, split: Configuration, grid: Grid
    ) -> Recorded:
        """Return a call's kernels with the bytes that its block keeps inside."""
        if self._is_call_as_captured(call):
            return recorded
        shards = math.prod(count_parts(split, grid[0]).values())
        inner = self._kept_by_call[call].inner / grid[1] / shards
        return replace(recorded, inner=inner)

    def _find_block_saved(self, block: Block, scale: float) -> tuple[list[int], float]:
        """Return the tensors that a block keeps for its backward pass, and other bytes.

        Args:
            block: The block, priced by the framework's kernels.
            scale: Share of the batch that a micro-batch has.
        """
        constants, calls = self.framework.constants, self.layers.calls.calls
        if block.kind == PRODUCT:
            return [self.finder.find_stream(block.calls[0])], 0.0
        if block.kind == ATTENTION:
            first, last = calls[block.calls[0]], calls[block.calls[-1]]
            values = first.reads[2] if len(block.calls) == 1 else last.reads[1]
            rows, *_ = self._attention_sizes(block)
            tensors = [self.finder.narrowest(v) for v in (*first.reads[:2], values)]
            return [*tensors, last.results[0]], 4.0 * rows * scale
        if block.kind == MULTIHEAD:
            rows, keys, _, width, _ = self._multihead_sizes(block)
            heads = self.finder.find_num_heads(block.calls[0])
            # Queries, keys and values, and what attention returns; the input is a tensor of others.
            inner_bytes = (
                HALF_BYTES * width * (2 * rows + 2 * keys) + 4.0 * rows * heads
            )
            return [calls[block.calls[0]].reads[0]], inner_bytes * scale
        if block.kind == EXPERTS:
            rows, _, hidden, width, _ = self._expert_sizes(block)
            row = constants["chosen_inside"] * width + constants["chosen_kept"] * hidden
            return [], rows * row * scale
        tensors, inner_bytes = [], 0.0
        for piece in block.pieces:
            elements = self._elements(piece.value) * scale
            if piece.kind == NORM:
                tensors.append(piece.value)
            elif piece.kind == ACTIVATION:
                inner_bytes += HALF_BYTES * elements
            elif piece.kind == GATE:  # the product that reads its result keeps that
                inner_bytes += (constants["gated_kept"] - HALF_BYTES) * elements
        return tensors, inner_bytes

    # What is recognised.

    def recognition(self, kind: str, examples: int) -> Recognition:
        """Return what of a micro-batch is recognised.

        Args:
            kind: The kind of device.
            examples: Examples of the micro-batch.
        """
        total = unrecognised = eager = 0.0
        by_module: dict[str, float] = {}
        written: dict[str, None] = {}
        for block in self.blocks:
            seconds = self.block_seconds_as_run(block, kind, examples)
            total += seconds
            if not block.has_two_prices:
                continue
            pattern = module_pattern(block.module) or "the model itself"
            eager += seconds
            if block.is_recognised:
                written[pattern] = None
                continue
            unrecognised += seconds
            by_module[pattern] = by_module.get(pattern, 0.0) + seconds
        # Fused, what a module writes out is one block.
        alternative = self.fused()
        fused = sum(
            alternative.sum_captured_seconds(block, kind, examples).total
            if alternative.is_as_captured(block)
            else alternative.block_seconds(block, kind, examples).total
            for block in alternative.blocks
            if block.has_two_prices
        )
        names = sorted(by_module, key=lambda name: -by_module[name])
        return Recognition(
            share=1.0 - unrecognised / max(total, 1e-30),
            unrecognised=tuple(n for n in names if by_module[n] > LEAST_SHARE * total),
            written_out=tuple(written),
            eager_over_fused=eager / max(fused, 1e-30),
        )

    def block_seconds_as_run(self, block: Block, kind: str, examples: int) -> float:
        """Return the seconds of a block's passes, as captured where it has two prices."""
        if block.has_two_prices:
            return self.sum_captured_seconds(block, kind, examples).total
        return self.block_seconds(block, kind, examples).total


def with_half_precision(layers: LayerGraph) -> LayerGraph:
    """Return a model whose floating-point values have two bytes for what is moved and kept.

    Captured under autocast some are wider; a framework casts all that modules pass to each other.
    """
    values = list(layers.operations.values)
    for k, info in enumerate(layers.calls.values):
        if info.dtype.is_floating_point and values[k].element > HALF_BYTES:
            values[k] = replace(values[k], element=int(HALF_BYTES))
    operations = replace(layers.operations, values=tuple(values))
    return replace(layers, operations=operations)


def _compute_streaming_seconds(
    framework: Framework, passed: float, returned: float
) -> BlockSeconds:
    """Return the seconds in which a block passes bytes forward and backward."""
    late = framework.kernels.stream(returned)
    return BlockSeconds(framework.kernels.stream(passed), late, late)
