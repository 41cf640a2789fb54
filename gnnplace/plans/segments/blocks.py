"""Blocks of a captured model for which a framework has kernels, recognised by what they compute.

Every call of a segment is in one block. A block is: a product with parameters (several that read
one tensor are one joined product); attention (one fused call, or the eager calls from the product
that makes scores to the product that reads them); PyTorch's own module of both; the experts of a
mixture; an embedding; a cross entropy; or a run of calls between these. Such a run consists of
*pieces*: norms, residuals, activations, gates, rotary positions of queries and keys, and the choice
of experts. Pieces are recognised by their structure:

* a norm is one call, or a mean (or variance) and its inverse root;
* a residual adds two tensors of equal shapes that come from different products;
* a gate multiplies an activation by another product's result, or by the other half of its own;
* calls between a product and the queries or keys of attention are rotary positions;
* calls that end in a top-k, or whose result experts read besides the stream, choose experts.

A run with more calls than its pieces need (such as a scan that is written out) is not recognised.
Neither is attention that adds anything but a mask to its scores, nor any other call.

Names of modules only say where a block is. Complexity: O(calls).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gnnplace.plans.segments.cuts import Cuts, attention_runs
from gnnplace.sharding import LayerGraph
from gnnplace.tracing import PARAMETER, SHAPE, LayerCall

PRODUCT = "product"
ATTENTION = "attention"
EXPERTS = "experts"
EMBEDDING = "embedding"
LOSS = "loss"
BETWEEN = "between"
OTHER = "other"
MULTIHEAD = "multihead"  # PyTorch's own module: products and attention in one call
"""Kinds of blocks. Calls of the last kind are of no framework's."""

NORM = "norm"
RESIDUAL = "residual"
ACTIVATION = "activation"
GATE = "gate"
QUERIES, KEYS, CHOICE = "queries", "keys", "choice"
"""Kinds of pieces of a block between others."""

CALLS_OF_PIECE = {
    NORM: 9,
    RESIDUAL: 2,
    ACTIVATION: 9,
    GATE: 10,
    QUERIES: 24,
    KEYS: 24,
    CHOICE: 40,
}
"""Most calls that launch kernels in which frameworks' models write a piece out."""
NORMS = ("layer_norm", "rms_norm")
PRODUCT_RULES = ("linear", "product")
BETWEEN_RULES = ("norm", "elementwise", SHAPE, "reduction")
ACTIVATIONS = (
    "silu",
    "gelu",
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "sigmoid",
    "tanh",
    "erf",
    "mish",
    "softplus",
    "hardswish",
)
INVERSE_ROOTS = ("rsqrt", "sqrt")
MEANS = ("mean", "var")
SUMS = ("add", "iadd")
MULTIPLICATIONS = ("mul", "imul")
PIECE_CALLS = frozenset(
    (
        *NORMS,
        *ACTIVATIONS,
        *INVERSE_ROOTS,
        *MEANS,
        *SUMS,
        *MULTIPLICATIONS,
        "sub",
        "div",
        "truediv",
        "pow",
        "square",
        "reciprocal",
        "glu",
        "clamp",
    )
)
"""Calls that norms, residuals, activations and gates are written out with."""
SPLITS = ("chunk", "split", "getitem", "unbind", "narrow", "select", "tensor_split")
"""Calls whose results are parts of a tensor, which are told from each other."""
SCORE_CALLS = (
    "mul",
    "imul",
    "div",
    "idiv",
    "truediv",
    "add",
    "iadd",
    "masked_fill",
    "where",
    "softmax",
    "dropout",
)
"""Calls among the products of attention that fused attention has too, beside changes of shape."""
COMPARISONS = ("ge", "gt", "le", "lt", "tril", "triu")
"""Calls that make a causal mask of positions."""
IS_CAUSAL = 5  # position among the arguments of fused attention
MULTIHEAD_CALL = "multi_head_attention_forward"
NUM_HEADS, NEEDS_WEIGHTS, MULTIHEAD_CAUSAL = 4, 15, 24
"""Positions among the arguments of `multi_head_attention_forward`."""


@dataclass(frozen=True)
class BlockPart:
    """A part of a block between others.

    Attributes:
        kind: One of the kinds of pieces.
        value: Index of the tensor whose elements it passes over.
    """

    kind: str
    value: int


@dataclass(frozen=True)
class Block:
    """Calls that a framework has one kernel for, or none.

    Attributes:
        kind: One of the kinds of blocks.
        calls: Its calls, in order.
        segment: Index of its segment.
        module: Path of the module that most of its calls are in.
        pieces: What it is a sum of, if it lies between other blocks.
        is_recognised: Whether a framework's kernels price it.
        is_written_out: Whether it is the eager spelling of one fused kernel.
        is_causal: Whether it is attention that needs half of its scores.
    """

    kind: str
    calls: tuple[int, ...]
    segment: int
    module: str
    pieces: tuple[BlockPart, ...] = ()
    is_recognised: bool = True
    is_written_out: bool = False
    is_causal: bool = False

    @property
    def has_two_prices(self) -> bool:
        """Return whether it costs otherwise as it is written than as one fused kernel."""
        return self.is_written_out or not self.is_recognised


def find_blocks(layers: LayerGraph, cuts: Cuts) -> tuple[Block, ...]:
    """Return the blocks of a captured model, segment by segment.

    Args:
        layers: The calls and their rules, of the whole batch.
        cuts: Where they are cut into segments.
    """
    finder = BlockFinder(layers, cuts)
    blocks: list[Block] = []
    for segment in range(len(cuts.runs)):
        blocks += finder.find_segment_blocks(segment)
    return tuple(blocks)


def join_modules(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks, those of one module and segment that are not recognised as one block.

    A kernel that replaces what a module writes out replaces its products of activations, too. What
    has no call between others (a convolution of its own) stays as it is.
    """
    groups: dict[tuple[int, str], list[Block]] = {}
    joined: list[Block] = []
    for block in blocks:
        if block.is_recognised or block.kind not in (BETWEEN, OTHER):
            joined.append(block)
        else:
            groups.setdefault((block.segment, block.module), []).append(block)
    for group in groups.values():
        if all(block.kind == OTHER for block in group):
            joined += group
            continue
        calls = sorted(call for block in group for call in block.calls)
        joined.append(replace(group[0], kind=BETWEEN, calls=tuple(calls)))
    return tuple(joined)


@dataclass(eq=False)
class BlockFinder:
    """A reader of the blocks of a captured model.

    Attributes:
        layers: The calls and their rules, of the whole batch.
        cuts: Where they are cut into segments.
    """

    layers: LayerGraph
    cuts: Cuts
    _makers: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._makers = {
            value: k for k, call in enumerate(self.calls) for value in call.results
        }

    @property
    def calls(self) -> tuple[LayerCall, ...]:
        """Return the calls of the model and its loss, in order."""
        return self.layers.calls.calls

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Return the calls that read each value, in order."""
        readers: dict[int, list[int]] = {}
        for k, call in enumerate(self.calls):
            for value in call.reads:
                readers.setdefault(value, []).append(k)
        return readers

    @cached_property
    def _attended(self) -> dict[int, str]:
        """Return the tensors that attention takes as queries and as keys, all segments' blocks."""
        attended: dict[int, str] = {}
        for segment in range(len(self.cuts.runs)):
            for run in attention_runs(
                self.layers.calls, self._list_segment_calls(segment)
            ):
                queries, keys = self.calls[run.start].reads[:2]
                attended[queries] = QUERIES
                attended[keys] = KEYS
        return attended

    def _list_segment_calls(self, segment: int) -> list[int]:
        """Return the calls of a segment that depend on parameters."""
        run = range(*self.cuts.runs[segment])
        return [k for k in run if k not in self.cuts.aside]

    def find_segment_blocks(self, segment: int) -> list[Block]:
        """Return the blocks of a segment."""
        calls = self._list_segment_calls(segment)
        blocks: list[Block] = []
        taken: set[int] = set()
        for run in attention_runs(self.layers.calls, calls):
            block = self._attention(segment, run, set(calls))
            blocks.append(block)
            taken.update(block.calls)

        # Products with one input are one joined product.
        products: dict[int, list[int]] = {}
        between: list[int] = []
        for k in calls:
            if k in taken:
                continue
            kind = self.layers.rules[k].kind
            if kind in PRODUCT_RULES and self.find_matrix(k) is not None:
                products.setdefault(self.root(self.find_stream(k)), []).append(k)
            elif kind in (EXPERTS, EMBEDDING):
                is_recognised = kind == EMBEDDING or self._is_mixture(k)
                blocks.append(
                    self._block(kind, segment, [k], is_recognised=is_recognised)
                )
            elif self.calls[k].kind == MULTIHEAD_CALL:
                blocks.append(self._multihead(segment, k))
            elif self.calls[k].kind == "cross_entropy":
                blocks.append(self._block(LOSS, segment, [k]))
            elif kind in BETWEEN_RULES and not (
                kind == "norm" and self.calls[k].kind not in NORMS
            ):
                between.append(k)
            else:
                blocks.append(self._block(OTHER, segment, [k], is_recognised=False))
        blocks += [self._block(PRODUCT, segment, k) for k in products.values()]
        blocks += [
            self._between(segment, run) for run in self._group_connected(between)
        ]
        return blocks

    def _block(
        self,
        kind: str,
        segment: int,
        calls: Sequence[int],
        pieces: Sequence[BlockPart] = (),
        *,
        is_recognised: bool = True,
    ) -> Block:
        """Return a block of some calls."""
        modules = [self.calls[k].module for k in calls]
        return Block(
            kind=kind,
            calls=tuple(calls),
            segment=segment,
            module=max(dict.fromkeys(modules), key=modules.count),
            pieces=tuple(pieces),
            is_recognised=is_recognised,
        )

    # Products and experts.

    def find_matrix(self, call: int) -> int | None:
        """Return the matrix of parameters that a call multiplies a tensor with, or None."""
        values = self.layers.calls.values
        matrices = [
            value
            for value in self.calls[call].reads
            if self._is_parameter(value) and len(values[value].shape) == 2
        ]
        streams = [v for v in self.calls[call].reads if not self._is_parameter(v)]
        if len(matrices) == 1 and len(streams) == 1:
            return matrices[0]
        return None

    def _is_parameter(self, value: int) -> bool:
        """Return whether a value is a parameter but for its shape and type."""
        return self.layers.calls.values[self.root(value)].source == PARAMETER

    def find_stream(self, call: int) -> int:
        """Return the tensor that a product multiplies with its matrix."""
        return next(v for v in self.calls[call].reads if not self._is_parameter(v))

    def expert_stacks(self, call: int) -> list[tuple[int, ...]]:
        """Return the shapes of the stacks of matrices that a call of experts reads."""
        values = self.layers.calls.values
        return [
            values[value].shape
            for value in self.calls[call].reads
            if self._is_parameter(value) and len(values[value].shape) == 3
        ]

    def _is_mixture(self, call: int) -> bool:
        """Return whether a call is of two stacks of matrices, with as many experts each."""
        stacks = self.expert_stacks(call)
        return len(stacks) == 2 and stacks[0][0] == stacks[1][0]

    def root(self, value: int) -> int:
        """Return the tensor that a value is but for its shape and type."""
        maker = self._makers.get(value)
        while maker is not None:
            call = self.calls[maker]
            if self.layers.rules[maker].kind != SHAPE or len(call.reads) != 1:
                break
            if call.kind in SPLITS and self.elements(value) != self.elements(
                call.reads[0]
            ):
                break
            value = call.reads[0]
            maker = self._makers.get(value)
        return value

    def elements(self, value: int) -> int:
        """Return the number of elements of a tensor, of the whole batch."""
        return math.prod(self.layers.calls.values[value].shape)

    # Attention.

    def _attention(self, segment: int, run: range, calls: set[int]) -> Block:
        """Return the block of one attention.

        Args:
            segment: The segment.
            run: Its calls and what stands among them; see `cuts.attention_runs`.
            calls: Calls of the segment that are priced.
        """
        if len(run) == 1:
            block = self._block(ATTENTION, segment, [run.start])
            return replace(block, is_causal=self._is_causal_call(run.start))
        # The scores, and what is made of them until the values take them.
        members = [run.start]
        scores = set(self.calls[run.start].results)
        for k in run[1:]:
            if k in calls and scores.intersection(self.calls[k].reads):
                members.append(k)
                scores.update(self.calls[k].results)
        inner = members[1:-1]
        is_plain = all(self._is_of_scores(k, scores) for k in inner)
        block = self._block(ATTENTION, segment, members, is_recognised=is_plain)
        masks = [
            value
            for k in inner
            for value in self.calls[k].reads
            if value not in scores and self._is_positions(value)
        ]
        return replace(block, is_written_out=is_plain, is_causal=bool(masks))

    def _multihead(self, segment: int, call: int) -> Block:
        """Return the block of a call of PyTorch's own attention with its products."""
        multihead = self.calls[call]
        needs_weights = multihead.argument(NEEDS_WEIGHTS, "need_weights", True)
        is_causal = multihead.argument(MULTIHEAD_CAUSAL, "is_causal", False)
        # Only without weights to return it calls fused attention.
        return replace(
            self._block(MULTIHEAD, segment, [call]),
            is_written_out=bool(needs_weights),
            is_causal=bool(is_causal) and not needs_weights,
        )

    def find_num_heads(self, call: int) -> int:
        """Return the number of heads of a call of PyTorch's own attention."""
        return int(self.calls[call].argument(NUM_HEADS, "num_heads"))

    def _is_of_scores(self, call: int, scores: set[int]) -> bool:
        """Return whether fused attention does to its scores what a call does."""
        kind = self.calls[call].kind
        if self.layers.rules[call].kind == SHAPE and kind not in ("cat", "stack"):
            return True
        if kind not in SCORE_CALLS:
            return False
        # Besides the scores it may read a mask alone, which no product of the layer makes.
        return all(
            value in scores or value not in self.cuts.derived
            for value in self.calls[call].reads
        )

    def _is_causal_call(self, call: int) -> bool:
        """Return whether fused attention leaves out half of its scores; a mask is read in full."""
        return bool(self.calls[call].argument(IS_CAUSAL, "is_causal", False))

    def _is_positions(self, mask: int) -> bool:
        """Return whether a mask is made by comparing positions."""
        pending = [mask]
        visited = set[int]()
        while pending:
            maker = self._makers.get(pending.pop())
            if maker is None or maker in visited:
                continue
            visited.add(maker)
            if self.calls[maker].kind in COMPARISONS:
                return True
            pending += self.calls[maker].reads
        return False

    # What lies between.

    def _group_connected(self, calls: Sequence[int]) -> list[list[int]]:
        """Return calls in groups that pass tensors to each other, each in order."""
        group = {k: k for k in calls}

        def first(k: int) -> int:
            while group[k] != k:
                group[k] = group[group[k]]
                k = group[k]
            return k

        for k in calls:
            for value in self.calls[k].reads:
                maker = self._makers.get(value)
                if maker in group:
                    one, two = sorted((first(k), first(maker)))
                    group[two] = one
        groups: dict[int, list[int]] = {}
        for k in calls:
            groups.setdefault(first(k), []).append(k)
        return list(groups.values())

    def launches(self, call: int) -> bool:
        """Return whether a call is more than a change of shape or type, or a dropout."""
        kind = self.calls[call].kind
        is_shape = self.layers.rules[call].kind == SHAPE
        return "dropout" not in kind and not (is_shape and kind not in ("cat", "stack"))

    def _between(self, segment: int, calls: Sequence[int]) -> Block:
        """Return the block of a run of calls that lie between others."""
        launching = sum(self.launches(k) for k in calls)
        results = [value for k in calls for value in self.calls[k].results]
        is_scalar = max((self.elements(value) for value in results), default=0) <= 1
        if not launching or is_scalar or self._is_read_by_loss(calls):
            return self._block(BETWEEN, segment, calls)
        pieces = self._pieces(calls)
        limit = sum(CALLS_OF_PIECE[piece.kind] for piece in pieces)
        is_recognised = launching <= limit and self._has_known_calls(calls, pieces)
        return self._block(BETWEEN, segment, calls, pieces, is_recognised=is_recognised)

    def _has_known_calls(
        self, calls: Sequence[int], pieces: Sequence[BlockPart]
    ) -> bool:
        """Return whether every call of a run is one that its pieces are written out with.

        What multiplies two products is a gate; elsewhere it is of no piece.
        """
        kinds = [piece.kind for piece in pieces]
        if any(kind in (QUERIES, KEYS, CHOICE) for kind in kinds):
            return True
        sources = self._sources(calls)
        products = 0
        for k in calls:
            call = self.calls[k]
            if not self.launches(k):
                continue
            if call.kind not in PIECE_CALLS:
                return False
            products += call.kind in MULTIPLICATIONS and self._joins(call, sources)
        return products <= kinds.count(GATE)

    def _results(self, calls: Sequence[int]) -> list[int]:
        """Return the tensors of a run of calls that others read."""
        inside = set(calls)
        return [
            value
            for k in calls
            for value in self.calls[k].results
            if any(reader not in inside for reader in self.readers.get(value, ()))
        ]

    def _is_read_by_loss(self, calls: Sequence[int]) -> bool:
        """Return whether all that a run of calls makes goes to a cross entropy."""
        inside = set(calls)
        readers = {
            self.calls[reader].kind
            for value in self._results(calls)
            for reader in self.readers[value]
            if reader not in inside
        }
        return readers == {"cross_entropy"}

    def _pieces(self, calls: Sequence[int]) -> list[BlockPart]:
        """Return what a run of calls is a sum of."""
        attended = [v for v in self._results(calls) if v in self._attended]
        if attended:
            return [BlockPart(self._attended[v], self.narrowest(v)) for v in attended]
        if self._chooses(calls):
            return [BlockPart(CHOICE, self.calls[calls[-1]].results[0])]
        sources = self._sources(calls)
        pieces: list[BlockPart] = []
        for k in calls:
            call = self.calls[k]
            if call.kind in NORMS:
                pieces.append(BlockPart(NORM, call.reads[0]))
            elif call.kind in INVERSE_ROOTS:
                pieces += self._find_written_norm(k)
            elif call.kind in ACTIVATIONS:
                if self._is_gated(k, calls, sources):
                    kind = GATE
                else:
                    kind = ACTIVATION
                pieces.append(BlockPart(kind, call.results[0]))
            elif call.kind == "glu":
                pieces.append(BlockPart(GATE, call.results[0]))
            elif call.kind in SUMS and self._joins(call, sources):
                pieces.append(BlockPart(RESIDUAL, call.results[0]))
        return pieces

    def narrowest(self, value: int) -> int:
        """Return the tensor that a value repeats over heads, or the value."""
        narrowest = value
        maker = self._makers.get(value)
        while maker is not None and self.layers.rules[maker].kind == SHAPE:
            call = self.calls[maker]
            if call.kind in ("cat", "stack") or not call.reads:
                break
            # A part of a tensor is narrower than the tensor; what repeats it is wider.
            if self.elements(call.reads[0]) > self.elements(value):
                break
            value = call.reads[0]
            if self.elements(value) < self.elements(narrowest):
                narrowest = value
            maker = self._makers.get(value)
        return narrowest

    def _chooses(self, calls: Sequence[int]) -> bool:
        """Return whether a run of calls chooses experts."""
        return any(self.calls[k].kind == "topk" for k in calls)

    def _sources(self, calls: Sequence[int]) -> dict[int, frozenset[object]]:
        """Return what each tensor of a run of calls comes from.

        A source is a tensor of another block, or a part that a call of the run cuts from one.
        """
        sources: dict[int, frozenset[object]] = {}
        inside = set(calls)
        for k in calls:
            call = self.calls[k]
            joined = frozenset[object]().union(
                *(self._find_sources(value, sources, inside) for value in call.reads)
            )
            for place, result in enumerate(call.results):
                is_part = call.kind in SPLITS and joined
                sources[result] = frozenset({(k, place)}) if is_part else joined
        return sources

    def _find_sources(
        self, value: int, sources: dict[int, frozenset[object]], calls: set[int]
    ) -> frozenset[object]:
        """Return what a tensor comes from; nothing for parameters, masks and constants."""
        if self._makers.get(value) in calls:
            return sources[value]
        if self._is_parameter(value) or value not in self.cuts.derived:
            return frozenset()
        return frozenset({self.root(value)})

    def _joins(self, call: LayerCall, sources: dict[int, frozenset[object]]) -> bool:
        """Return whether a call joins two tensors of one size that come from different sources."""
        if len(call.reads) != 2:
            return False
        first, second = call.reads
        if self.elements(first) != self.elements(second):
            return False
        outside = frozenset[object]()
        one = sources.get(first) or self._find_sources(first, {}, set())
        two = sources.get(second) or self._find_sources(second, {}, set())
        return bool(one) and bool(two) and one & two == outside

    def _find_written_norm(self, root: int) -> list[BlockPart]:
        """Return the norm that the inverse root of a mean of squares belongs to, if it does."""
        value = self.calls[root].reads[0]
        maker = self._makers.get(value)
        while maker is not None and self.calls[maker].kind not in MEANS:
            tensors = [v for v in self.calls[maker].reads if not self._is_parameter(v)]
            if len(tensors) != 1:
                return []
            maker = self._makers.get(tensors[0])
        if maker is None:
            return []
        return [BlockPart(NORM, self.calls[maker].reads[0])]

    def _is_gated(
        self,
        activation: int,
        calls: Sequence[int],
        sources: dict[int, frozenset[object]],
    ) -> bool:
        """Return whether an activation is multiplied with another product's result."""
        start = sources[self.calls[activation].results[0]]
        for k in calls:
            call = self.calls[k]
            if k <= activation or call.kind not in MULTIPLICATIONS:
                continue
            if not self._joins(call, sources):
                continue
            if any(sources.get(value) == start for value in call.reads):
                return True
        return False


def module_pattern(module: str) -> str:
    """Return a module's path with a star for every number: `h.*.attn` of `h.3.attn`."""
    return ".".join("*" if part.isdecimal() else part for part in module.split("."))


def list_unrecognised_modules(blocks: Iterable[Block]) -> tuple[str, ...]:
    """Return the modules of blocks that no framework's kernels price, alike ones once."""
    patterns = [module_pattern(b.module) for b in blocks if not b.is_recognised]
    return tuple(dict.fromkeys(pattern or "the model" for pattern in patterns))
