"""Recognition of a decoder of text in a captured model, by what it computes and not by its names.

A model of one's own is known by its sizes if its calls are those of such a decoder: an embedding
of words, perhaps learned positions, layers that are alike, a head and a cross entropy over the
vocabulary. A layer has products that make queries, keys and values, one causal call of fused
attention, the product after it, and a feed-forward of two matrices or of three; between them are
only norms, elementwise work and changes of shape. All parameters must be among these and trained.

For a launcher a layer may also be a mixture: one product of the stream scores experts, `topk`
chooses some of them for each token, and the experts are gated feed-forwards alike, as stacks of
matrices or as modules of a numbered list; other products are what every token passes.

What is recognised is priced by a framework's kernels (`plans.segments.sized`); every other model by
the kernels that were captured, and the reason is a line of the answer.

Complexity: O(calls) and, in each layer, O(calls of the layer) for what attention depends on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from gnnplace.plans.decoders.decoder import (
    CAUSAL,
    DecoderSizes,
    ExpertLayers,
    from_config,
)
from gnnplace.plans.plan import find_layer
from gnnplace.sharding import LayerGraph
from gnnplace.tracing import LayerCall, LayerValue
from gnnplace.zoo import Workload

LINEAR = "linear"
ATTENTION = "attention"
EMBEDDING = "embedding"
LOSS = "loss"
BETWEEN = ("norm", "elementwise", "shape", "reduction", "whole")
"""Kinds of calls that may stand between the products of a layer."""
PARAMETER, INPUT = "parameter", "input"  # sources of values
TOPK = "topk"  # kind of the call that chooses experts
IS_CAUSAL = 5  # position of `is_causal` among the arguments of fused attention


class UnrecognisedError(Exception):
    """The reason why a model is no decoder that its sizes price."""


@dataclass(frozen=True)
class Product:
    """A product with a matrix of parameters.

    Attributes:
        call: Index of its call in the model.
        name: Name of the call.
        stream: Position of what is multiplied among the tensors that the call reads.
        matrix: Index of the matrix among the values of the model.
        inputs: Columns of the matrix, as `linear` has them.
        outputs: Rows of the matrix.
        has_bias: Whether it adds a bias.
    """

    call: int
    name: str
    stream: int
    matrix: int
    inputs: int
    outputs: int
    has_bias: bool


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of one layer of a decoder; fields as those of `DecoderSizes`.

    Attributes:
        hidden: Width of the stream.
        heads: Number of heads of queries.
        kv_heads: Number of heads of keys and values.
        head_size: Width of a head.
        feed_forward: Width inside of the feed-forward.
        gated: Whether the feed-forward has a gate.
        biases: Whether any product has a bias.
        vectors: Elements of parameters that are no matrices.
        head_norms: Whether each head's queries and keys pass a norm.
        joins_queries: Whether one product makes queries, keys and values.
        joins_gate: Whether one product makes the gate and what it gates.
        experts: The experts that the feed-forward chooses from, if it does.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    gated: bool
    biases: bool
    vectors: int
    head_norms: bool
    joins_queries: bool
    joins_gate: bool
    experts: ExpertLayers | None = None


def read_configured_sizes(workload: Workload, batch: int) -> DecoderSizes | None:
    """Return a model's sizes by its configuration; None if it is no decoder of transformers.

    The class is transformers' own, every parameter is trained, and there are as many as the sizes
    have; an adapter, a frozen part or a head of another kind is none.

    Args:
        workload: The model, its inputs and its loss.
        batch: Examples of a step.
    """
    model = workload.model
    kind = type(model)
    if not kind.__module__.startswith("transformers.") or not kind.__name__.endswith(
        CAUSAL
    ):
        return None
    inputs = workload.inputs
    tensors = list(inputs.values() if isinstance(inputs, dict) else inputs)
    if workload.loss is not None or not tensors or tensors[0].dim() != 2:
        return None
    sizes = from_config(workload.name, model.config, int(tensors[0].shape[1]), batch)
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    is_trained = all(parameter.requires_grad for parameter in parameters)
    if sizes is not None and is_trained and count == sizes.parameters:
        return sizes
    return None


def recognise_sizes(
    layers: LayerGraph, model: nn.Module, batch: int, *, mixtures: bool = False
) -> DecoderSizes | str:
    """Return the sizes of the decoder that a captured model is, or why it is none.

    Args:
        layers: Its calls and their rules, of the whole batch.
        model: The model.
        batch: Examples of a step.
        mixtures: Whether a mixture of experts may be one. Its sizes say what a launcher trains,
            which sends each token to its experts; a model may compute all experts of every token.
    """
    try:
        return _Recogniser(layers, model, mixtures).sizes(batch)
    except UnrecognisedError as reason:
        return str(reason)


@dataclass(frozen=True)
class _Recogniser:
    """A reader of a decoder's sizes from the calls of a model.

    Attributes:
        layers: The calls and their rules, of the whole batch.
        model: The model.
        mixtures: Whether layers may have experts.
    """

    layers: LayerGraph
    model: nn.Module
    mixtures: bool = False

    @property
    def calls(self) -> tuple[LayerCall, ...]:
        """Return the calls of the model and its loss, in order."""
        return self.layers.calls.calls

    @cached_property
    def makers(self) -> dict[int, int]:
        """Return the call that makes each value."""
        return {value: k for k, call in enumerate(self.calls) for value in call.results}

    @cached_property
    def layer_calls(self) -> dict[str, list[int]]:
        """Return the calls of each numbered module, in order."""
        calls: dict[str, list[int]] = {}
        for k, call in enumerate(self.calls):
            name = find_layer(call.module)
            if name:
                calls.setdefault(name, []).append(k)
        return calls

    def sizes(self, batch: int) -> DecoderSizes:
        """Return the sizes; see `recognise_sizes`."""
        frozen = [
            name for name, p in self.model.named_parameters() if not p.requires_grad
        ]
        if frozen:
            raise UnrecognisedError(f"{frozen[0]} is not trained")
        if not self.layer_calls:
            raise UnrecognisedError("it has no numbered layers")
        sizes_of_layers = {
            name: self._layer(name, calls) for name, calls in self.layer_calls.items()
        }
        first, layer = next(iter(sizes_of_layers.items()))
        unlike = next(
            (name for name, sizes in sizes_of_layers.items() if sizes != layer), None
        )
        if unlike is not None:
            raise UnrecognisedError(f"{unlike} has other sizes than {first}")
        outside = [
            k for k in range(len(self.calls)) if not find_layer(self.calls[k].module)
        ]
        vocabulary, length, is_tied = self._ends(outside, layer.hidden)
        positions, end_vectors = self._end_parameters(
            layer.hidden, vocabulary, is_tied=is_tied
        )
        sizes = DecoderSizes(
            layers=len(sizes_of_layers),
            hidden=layer.hidden,
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            feed_forward=layer.feed_forward,
            length=length,
            vocabulary=vocabulary,
            gated=layer.gated,
            tied=is_tied,
            batch=batch,
            positions=None if layer.gated and not positions else positions,
            own_head_size=None
            if layer.heads * layer.head_size == layer.hidden
            else layer.head_size,
            head_norms=layer.head_norms,
            biases=layer.biases
            or layer.gated,  # those of gated layers are among the vectors
            experts=layer.experts,
            joins_queries=layer.joins_queries,
            joins_gate=layer.joins_gate,
        ).with_vectors(layer.vectors, end_vectors)
        count = sum(parameter.numel() for parameter in self.model.parameters())
        if sizes.parameters != count:
            raise UnrecognisedError(
                f"it has {count:,} parameters, a decoder of its sizes {sizes.parameters:,}"
            )
        return sizes

    def _layer(self, name: str, calls: Sequence[int]) -> LayerSizes:
        """Return the sizes of one layer.

        Args:
            name: Name of its module.
            calls: Its calls, in order.

        Raises:
            UnrecognisedError: It is no layer of a decoder.
        """
        kinds = {k: self.layers.rules[k].kind for k in calls}
        choices = [k for k in calls if self.calls[k].kind == TOPK and self.mixtures]
        stacks = self._stacks(name) if choices else []
        for k, kind in kinds.items():
            reads_stack = any(len(v.shape) == 3 for v in self._parameters(k))
            if stacks and reads_stack:
                continue
            if kind not in (LINEAR, ATTENTION, *BETWEEN):
                if kind == "product":
                    reason = "attention written out"
                else:
                    reason = f"a call of kind {kind}"
                raise UnrecognisedError(f"{self.calls[k].name}: {reason}")
        attentions = [k for k in calls if kinds[k] == ATTENTION]
        if len(attentions) != 1:
            raise UnrecognisedError(
                f"{name}: {len(attentions)} calls of attention, not one"
            )
        (attention,) = attentions
        products = [self._product(k) for k in calls if kinds[k] == LINEAR]
        heads, head_size = self._heads(attention)

        # Products before attention make queries, keys and values; one takes what it returns.
        makers = self._find_makers(attention, set(calls))
        projections = [product for product in products if product.call in makers]
        products_after = [
            p for p in products if self._source(p.call, p.stream) == attention
        ]
        inside = [
            p for p in products if p not in projections and p not in products_after
        ]
        if len(products_after) != 1 or products_after[0].inputs != heads * head_size:
            raise UnrecognisedError(
                f"{name}: no single product takes what attention returns"
            )
        hidden = products_after[0].outputs
        keys, remainder = divmod(
            sum(p.outputs for p in projections) - heads * head_size, 2 * head_size
        )
        is_plain = len(projections) in (1, 2, 3) and all(
            p.inputs == hidden for p in projections
        )
        if not is_plain or remainder or keys < 1:
            raise UnrecognisedError(
                f"{name}: queries, keys and values are not made of the stream alone"
            )
        experts = None
        if choices:
            experts = self._experts(name, choices, inside, stacks, hidden)
            feed_forward, is_gated, joins_gate = experts.width, True, False
        else:
            feed_forward, is_gated, joins_gate = _feed_forward(name, inside, hidden)
        num_matrices = len(products) + len(stacks)
        vectors, has_head_norms = self._vectors(name, num_matrices, head_size)
        return LayerSizes(
            hidden=hidden,
            heads=heads,
            kv_heads=keys,
            head_size=head_size,
            feed_forward=feed_forward,
            gated=is_gated,
            biases=any(product.has_bias for product in products),
            vectors=vectors,
            head_norms=has_head_norms,
            joins_queries=len(projections) == 1,
            joins_gate=joins_gate,
            experts=experts,
        )

    def _parameters(self, call: int) -> list[LayerValue]:
        """Return the parameters that a call reads."""
        return [v for v in self._values(self.calls[call]) if v.source == PARAMETER]

    def _stacks(self, layer: str) -> list[torch.Size]:
        """Return the shapes of a layer's stacks of matrices, which experts have."""
        parameters = self.model.get_submodule(layer).parameters()
        return [tensor.shape for tensor in parameters if tensor.dim() == 3]

    def _experts(
        self,
        name: str,
        choices: Sequence[int],
        inside: Sequence[Product],
        stacks: Sequence[torch.Size],
        hidden: int,
    ) -> ExpertLayers:
        """Return the experts that a layer's feed-forward chooses from.

        They are stacks of matrices, or modules of a numbered list.

        Args:
            name: Name of the layer.
            choices: Calls that choose the largest scores of a token.
            inside: The products that are none of attention's, in order.
            stacks: Shapes of stacks of matrices.
            hidden: Width of the stream.

        Raises:
            UnrecognisedError: There is no router, or its experts are no gated feed-forwards alike.
        """
        routers = [p for p in inside if p.call in self._find_scores(choices[0])]
        if len(choices) != 1 or len(routers) != 1 or routers[0].inputs != hidden:
            raise UnrecognisedError(
                f"{name}: not one choice of experts by one product of the stream"
            )
        (router,) = routers
        count, active = router.outputs, self.calls[choices[0]].argument(1, "k")

        # Products are of experts in a list by their numbers, and of what every token passes.
        groups: dict[str, list[Product]] = {}
        for product in inside:
            if product is not router:
                module = self.calls[product.call].module
                number = re.match(rf"{re.escape(name)}\..*?\.(\d+)\b", module)
                groups.setdefault(number[1] if number else "", []).append(product)
        shared = groups.pop("", [])
        feed_forwards = {
            _feed_forward(name, group, hidden) for group in groups.values()
        }
        feed_forwards |= (
            {_find_stacked_experts(name, stacks, hidden, count)} if stacks else set()
        )
        is_complete = bool(stacks) != bool(groups) and len(groups) in (0, count)
        if len(feed_forwards) != 1 or not is_complete:
            raise UnrecognisedError(f"{name}: it has no {count} experts that are alike")
        ((width, is_gated, _),) = feed_forwards
        shared_width, shared_gated = 0, True
        if shared:
            shared_width, shared_gated, _ = _feed_forward(name, shared, hidden)
        if not is_gated or not shared_gated:
            raise UnrecognisedError(f"{name}: its experts have no gate")
        return ExpertLayers(count, int(active), width, shared_width)

    def _find_scores(self, choice: int) -> set[int]:
        """Return the products that a choice of experts depends on, without those before them."""
        products: set[int] = set()
        pending = [choice]
        while pending:
            for value in self.calls[pending.pop()].reads:
                maker = self.makers.get(value)
                if maker is None:
                    continue
                if self.layers.rules[maker].kind == LINEAR:
                    products.add(maker)
                else:
                    pending.append(maker)
        return products

    def _heads(self, attention: int) -> tuple[int, int]:
        """Return the number of query heads and their width.

        Raises:
            UnrecognisedError: Attention has no axis of heads, or is not causal.
        """
        call = self.calls[attention]
        queries = self._values(call)[0].shape
        if len(queries) != 4:
            raise UnrecognisedError(f"{call.name}: no axis of heads")
        if not call.argument(IS_CAUSAL, "is_causal", False):
            raise UnrecognisedError(
                f"{call.name}: it is not said to be causal by is_causal=True"
            )
        return queries[1], queries[3]

    def _vectors(
        self, name: str, num_products: int, head_size: int
    ) -> tuple[int, bool]:
        """Return a layer's parameters that are no matrices, and whether heads have norms."""
        count = 0
        num_matrices = 0
        has_head_norms = False
        for parameter, tensor in self.model.get_submodule(name).named_parameters():
            if tensor.dim() < 2:
                count += tensor.numel()
                has_head_norms |= (
                    tensor.numel() == head_size and "bias" not in parameter
                )
            else:
                num_matrices += 1
        if num_matrices != num_products:
            raise UnrecognisedError(
                f"{name}: it has {num_matrices} matrices beside its products"
            )
        return count, has_head_norms

    def _ends(self, outside: Sequence[int], hidden: int) -> tuple[int, int, bool]:
        """Return the words, the tokens of an example, and whether the head is the embedding.

        Args:
            outside: The calls in no layer, in order.
            hidden: Width of the stream.

        Raises:
            UnrecognisedError: These calls are not an embedding, a head and a cross entropy.
        """
        kinds = {k: self.layers.rules[k].kind for k in outside}
        for k, kind in kinds.items():
            if kind not in (LINEAR, EMBEDDING, LOSS, *BETWEEN):
                raise UnrecognisedError(f"{self.calls[k].name}: a call of kind {kind}")
        # There must be one embedding of the inputs, one head and one loss.
        losses = [k for k in outside if kinds[k] == LOSS]
        heads = [self._product(k) for k in outside if kinds[k] == LINEAR]
        words = [k for k in outside if kinds[k] == EMBEDDING and self._input(k)]
        if len(losses) != 1 or len(heads) != 1 or len(words) != 1:
            raise UnrecognisedError(
                f"outside of layers it has {len(words)} embeddings of its inputs, {len(heads)} "
                f"products and {len(losses)} losses, not one of each"
            )
        (head,) = heads
        if (
            self._source(losses[0], 0) != head.call
            or self.calls[losses[0]].kind != "cross_entropy"
        ):
            raise UnrecognisedError(
                f"{self.calls[losses[0]].name}: no cross entropy of what the head returns"
            )
        # The head must have the sizes of the embedding, which must read rows of tokens.
        embedding = next(
            v for v in self._values(self.calls[words[0]]) if v.source == PARAMETER
        )
        if embedding.shape != (head.outputs, hidden) or head.inputs != hidden:
            raise UnrecognisedError(
                f"{head.name}: its sizes are not those of the embedding"
            )
        tokens = self._input(words[0])
        if tokens is None or len(tokens.shape) != 2:
            raise UnrecognisedError(
                f"{self.calls[words[0]].name}: its inputs are no rows of tokens"
            )
        head_matrix = self.layers.calls.values[head.matrix]
        is_tied = self.model.get_parameter(embedding.name) is self.model.get_parameter(
            head_matrix.name
        )
        return head.outputs, tokens.shape[1], is_tied

    def _end_parameters(
        self, hidden: int, vocabulary: int, *, is_tied: bool
    ) -> tuple[int, int]:
        """Return the learned positions, and the elements outside of layers that are in no matrix.

        Raises:
            UnrecognisedError: There is a matrix that is no part of a decoder.
        """
        tables = [(vocabulary, hidden)] * (1 if is_tied else 2)
        positions = 0
        vectors = 0
        for name, parameter in self.model.named_parameters():
            shape = tuple(size for size in parameter.shape if size > 1)
            if find_layer(name):
                continue
            if len(shape) < 2:
                vectors += parameter.numel()
            elif shape in tables:
                tables.remove(shape)
            elif len(shape) == 2 and shape[1] == hidden and not positions:
                positions = shape[0]
            else:
                raise UnrecognisedError(f"{name}: a matrix of no part of a decoder")
        return positions, vectors

    def _product(self, number: int) -> Product:
        """Return a product of the stream with a matrix of parameters.

        Raises:
            UnrecognisedError: The call multiplies something else.
        """
        call = self.calls[number]
        values = self._values(call)
        matrices = [
            k
            for k, v in enumerate(values)
            if v.source == PARAMETER and len(v.shape) == 2
        ]
        streams = [k for k, v in enumerate(values) if v.source != PARAMETER]
        if len(matrices) != 1 or len(streams) != 1:
            raise UnrecognisedError(
                f"{call.name}: no product of a value with a parameter"
            )
        rows, columns = values[matrices[0]].shape
        # For example addmm's weight, which has a column for each output.
        is_transposed = call.kind != LINEAR
        return Product(
            call=number,
            name=call.name,
            stream=streams[0],
            matrix=call.reads[matrices[0]],
            inputs=rows if is_transposed else columns,
            outputs=columns if is_transposed else rows,
            has_bias=len(values) > 2,
        )

    def _values(self, call: LayerCall) -> list[LayerValue]:
        """Return the tensors that a call reads."""
        return [self.layers.calls.values[value] for value in call.reads]

    def _input(self, call: int) -> LayerValue | None:
        """Return the input of the model that a call reads, its shape changed or not; or None."""
        values = self.layers.calls.values
        for value in self.calls[call].reads:
            maker = self.makers.get(value)
            while maker is not None and self.layers.rules[maker].kind == "shape":
                value = self.calls[maker].reads[0]
                maker = self.makers.get(value)
            if values[value].source == INPUT:
                return values[value]
        return None

    def _source(self, call: int, position: int) -> int | None:
        """Return the call whose result another reads, changes of shape and type left out."""
        maker = self.makers.get(self.calls[call].reads[position])
        while maker is not None and self.layers.rules[maker].kind == "shape":
            maker = self.makers.get(self.calls[maker].reads[0])
        return maker

    def _find_makers(self, call: int, within: set[int]) -> set[int]:
        """Return the calls that another depends on.

        Args:
            call: The call.
            within: Those that are looked at.
        """
        makers: set[int] = set()
        pending = [call]
        while pending:
            for value in self.calls[pending.pop()].reads:
                maker = self.makers.get(value)
                if maker is not None and maker in within and maker not in makers:
                    makers.add(maker)
                    pending.append(maker)
        return makers


def _feed_forward(
    name: str, inside: Sequence[Product], hidden: int
) -> tuple[int, bool, bool]:
    """Return the width of a feed-forward, whether it has a gate, and whether one product joins it.

    Args:
        name: Name of the layer.
        inside: The products that are none of attention's, in order.
        hidden: Width of the stream.

    Raises:
        UnrecognisedError: The products make no feed-forward.
    """
    if len(inside) in (2, 3):
        *ups, down = inside
        width = down.inputs
        is_stream = down.outputs == hidden and all(up.inputs == hidden for up in ups)
        outputs = [up.outputs for up in ups]
        if is_stream and outputs == [width] * len(ups):
            return width, len(ups) == 2, False
        if is_stream and outputs == [2 * width]:
            return width, True, True
    raise UnrecognisedError(
        f"{name}: {len(inside)} products beside attention make no feed-forward"
    )


def _find_stacked_experts(
    name: str, stacks: Sequence[torch.Size], hidden: int, count: int
) -> tuple[int, bool, bool]:
    """Return the width of stacked experts, whether they have a gate, and whether it is joined.

    Args:
        name: Name of the layer.
        stacks: Shapes of the stacks of matrices.
        hidden: Width of the stream.
        count: Experts.

    Raises:
        UnrecognisedError: The stacks make no feed-forwards.
    """
    elements = sorted(math.prod(shape) for shape in stacks)
    width, remainder = divmod(elements[0], count * hidden)
    multiples = [size / max(elements[0], 1) for size in elements]
    is_expert = all(s[0] == count and hidden in s[1:] for s in stacks) and not remainder
    if is_expert and multiples in ([1.0, 1.0], [1.0, 2.0], [1.0, 1.0, 1.0]):
        return width, multiples != [1.0, 1.0], multiples == [1.0, 2.0]
    raise UnrecognisedError(f"{name}: its stacks of matrices make no {count} experts")


def recognition_line(sizes: DecoderSizes) -> str:
    """Format what a model was recognised as."""
    kind = "gated" if sizes.gated else "plain"
    return (
        f"recognised by its calls: {sizes.layers} {kind} decoder layers of width {sizes.hidden:,}, "
        f"{sizes.heads} heads ({sizes.kv_heads} of keys), feed-forward {sizes.feed_forward:,}, "
        f"{sizes.vocabulary:,} words"
    )
