"""`SizedModelCosts`: a captured decoder whose layers are priced by its sizes.

A decoder of `transformers` is captured so that it can run. Its prices come from its sizes and the
framework's own kernels: fused attention, norms with their residual, joined products. Every layer
costs what `decoders.costs` says. Its segments divide these seconds in proportion to their captured
seconds, and bytes in proportion to their captured bytes. A split that has no price by sizes costs
the price of the nearest one that has, times the ratio of their captured prices.

The chain of such a model carries the framework; its answers are those of the sizes alone wherever
stages have whole layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar

import numpy as np

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.costs import GPUS, Framework
from gnnplace.plans.decoders.costs import DecoderCosts
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import (
    HALVES,
    FrameworkOptions,
    PricingSetting,
    adapt_framework,
    find_memory_limit,
    make_pricing_setting,
)
from gnnplace.plans.decoders.stages import cut_layers
from gnnplace.plans.segments.block_costs import BlockCosts, with_half_precision
from gnnplace.plans.segments.chain import (
    CONTEXT,
    EXAMPLES,
    EXPERTS,
    FASTEST,
    WEIGHTS,
    Basis,
    Chain,
    Degrees,
    SegmentCosts,
    SplitChoice,
    find_degrees,
)
from gnnplace.plans.segments.pricing import ModelCosts
from gnnplace.plans.segments.recognition import (
    read_configured_sizes,
    recognise_sizes,
    recognition_line,
)
from gnnplace.problem import Cluster, find_kind
from gnnplace.zoo import Workload

SHARED_BY = {
    "forward": "forward",
    "backward": "backward",
    "weights": "weights",
    "recomputed": "forward",
    "host": "forward",
    "attention": "attention",
    "scores": "attention",
    "saved": "saved",
    "parameters": "parameters",
    "experts": "parameters",
}
"""Columns of a layer that its segments share, and the captured column that they share by."""
LIKE_SECONDS, LIKE_PARAMETERS = 0.03, 0.01
"""Relative differences up to which a split is one that the sizes know: what remains is how much of
what shards gather is kept, which the choice of known splits weighs by the bytes that there are."""
RATIOS = ("forward", "backward", "weights", "saved", "parameters")
"""Columns in which a free split differs from the nearest known one."""


@dataclass(eq=False)
class SizedModelCosts(ModelCosts):
    """The costs of a captured decoder by its sizes; attributes as of `ModelCosts`, and these.

    Attributes:
        sizes: Costs of its layers.
        layer: Number of every segment's layer: 0 for the embedding, 1 and on for the layers, the
            last for the head. [segments]
    """

    basis: ClassVar[Basis] = "sizes"

    sizes: DecoderCosts
    layer: IntArray
    _bases: dict[object, SplitChoice | None] = field(init=False, default_factory=dict)

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Return the costs of every segment; see `plans.segments.chain.CostSource`."""
        captured = super().costs(kind, axes, examples, choice)
        base = self.base_choice(kind, axes, examples, choice)
        if captured is None or base is None:
            return None
        by_layer = self.sizes.costs(kind, axes, examples, base)
        if by_layer is None:
            return None
        columns = {
            name: self._shared(getattr(by_layer, name), getattr(captured, weights))
            for name, weights in SHARED_BY.items()
        }
        # A free split takes the known one's numbers times the ratio of both when captured.
        if base is choice:
            base_costs = None
        else:
            base_costs = super().costs(kind, axes, examples, base)
        if base_costs is not None and not _is_like(base_costs, captured):
            for name in RATIOS:
                base_column = getattr(base_costs, name)
                captured_column = getattr(captured, name)
                columns[name] *= np.where(
                    base_column > 0,
                    captured_column / np.maximum(base_column, 1e-30),
                    1.0,
                )
        # A layer's input is its first segment's, the loss its last segment's.
        changes = self.layer[1:] != self.layer[:-1]
        is_first = np.concatenate([[True], changes])
        is_last = np.concatenate([changes, [True]])
        return SegmentCosts(
            update=np.zeros(len(self.layer)),
            entering=np.where(
                is_first, by_layer.entering[self.layer], captured.entering
            ),
            working=by_layer.working[self.layer],
            error=by_layer.error[self.layer],
            tied=captured.tied,
            loss=np.where(is_last, by_layer.loss[self.layer], 0.0),
            largest=by_layer.largest[self.layer],
            summed=np.stack(
                [self._shared(row, captured.parameters) for row in by_layer.summed]
            ),
            **columns,
        )

    def _shared(self, by_layer: FloatArray, weights: FloatArray) -> FloatArray:
        """Share the numbers of layers among their segments.

        An embedding that is captured with the first layer is of that layer's first segment.

        Args:
            by_layer: Numbers of the embedding, every layer, and the head. [layers + 2]
            weights: Captured numbers by which segments share. [segments]
        """
        count = len(by_layer)
        embedding = np.zeros(len(weights))
        if self.layer[0] != 0:
            embedding[0] = by_layer[0]
        sums = np.bincount(self.layer, weights, count)
        # Where nothing was captured the layer's last segment has it all.
        alone = np.zeros(len(weights))
        for layer in np.unique(self.layer):
            last_segment = np.flatnonzero(self.layer == layer)[-1]
            alone[last_segment] = 1.0
        weights = np.where(sums[self.layer] > 0, weights, alone)
        sums = np.where(sums > 0, sums, 1.0)
        return np.asarray(by_layer[self.layer] * weights / sums[self.layer] + embedding)

    def base_choice(
        self, kind: str, axes: tuple[int, ...], examples: int, choice: SplitChoice
    ) -> SplitChoice | None:
        """Return the nearest split that the sizes know; None where there is none.

        Args:
            kind: The kind of device.
            axes: Devices along each axis of the shards, the outer one first.
            examples: Examples of a micro-batch on each replica.
            choice: How the split over them is chosen.
        """
        if choice.labels is None and find_degrees(axes, choice) is not None:
            return choice
        key = kind, axes, examples, choice
        if key not in self._bases:
            self._bases[key] = self._nearest(kind, axes, examples, choice)
        return self._bases[key]

    def _nearest(
        self, kind: str, axes: tuple[int, ...], examples: int, choice: SplitChoice
    ) -> SplitChoice | None:
        """Return the split of known degrees whose captured costs are nearest; see `base_choice`."""
        captured = super().costs(kind, axes, examples, choice)
        if captured is None:
            return None
        styles = [WEIGHTS, CONTEXT]
        if self.experts:
            styles += [EXPERTS, EXAMPLES]
        outer = styles[1:] if len(axes) == 2 else [""]
        distances: list[tuple[float, int, SplitChoice]] = []
        inner = styles if len(axes) == 1 else [WEIGHTS]
        for outer_style, style in product(outer, inner):
            base = SplitChoice(
                style, outer_style, choice.border, regather=choice.regather
            )
            costs = super().costs(kind, axes, examples, base)
            if costs is None or self.sizes.costs(kind, axes, examples, base) is None:
                continue
            distances.append((_distance(costs, captured), len(distances), base))
        if distances:
            return min(distances)[2]
        return None

    def degrees(
        self, kind: str, axes: tuple[int, ...], examples: int, choice: SplitChoice
    ) -> Degrees:
        """Return the degrees of the nearest split that the sizes know; see `base_choice`."""
        base = self.base_choice(kind, axes, examples, choice)
        if base is None:
            degrees = None
        else:
            degrees = find_degrees(axes, base)
        return degrees or Degrees(tp=axes[-1], cp=1, ep=1, replicas=1)

    def cut(self, num_stages: int) -> tuple[int, ...]:
        """Return the layers of every stage as the framework cuts them. [stages]"""
        setting = self.sizes.setting
        return cut_layers(setting.decoder, num_stages, setting.framework.traits.cut)


def _distance(costs: SegmentCosts, reference: SegmentCosts) -> float:
    """Return the sum of the relative differences of two splits' costs."""
    return sum(
        float(np.abs(getattr(costs, name) - getattr(reference, name)).sum())
        / max(float(getattr(reference, name).sum()), 1e-30)
        for name in RATIOS
    )


def _is_like(costs: SegmentCosts, reference: SegmentCosts) -> bool:
    """Return whether two splits cut the same parameters and take as long."""

    def seconds(one: SegmentCosts) -> float:
        return float((one.forward + one.backward + one.weights).sum())

    parameters = float(costs.parameters.sum()) / max(
        float(reference.parameters.sum()), 1e-30
    )
    took = seconds(costs) / max(seconds(reference), 1e-30)
    return abs(parameters - 1.0) <= LIKE_PARAMETERS and abs(took - 1.0) <= LIKE_SECONDS


def with_sizes(chain: Chain, workload: Workload, cluster: Cluster) -> Chain:
    """Return a captured chain priced by its sizes; the chain itself where they are not known.

    A line of the chain says what a model of one's own was recognised as, or why it was not.

    Args:
        chain: The captured model.
        workload: What was captured.
        cluster: The devices that it is planned for.
    """
    sizes = read_configured_sizes(workload, chain.batch)
    if sizes is not None:
        return with_decoder(chain, sizes, cluster)
    source = chain.source
    assert isinstance(source, ModelCosts)
    recognised = recognise_sizes(source.layers, workload.model, chain.batch)
    if isinstance(recognised, str):
        line = f"no decoder that its sizes price: {recognised}"
        return with_blocks(replace(chain, notices=(*chain.notices, line)), cluster)
    sized = with_decoder(chain, recognised, cluster)
    if sized is chain:
        return chain
    return replace(sized, notices=(*sized.notices, recognition_line(recognised)))


def with_decoder(chain: Chain, sizes: DecoderSizes, cluster: Cluster) -> Chain:
    """Return a captured chain priced by sizes; the chain itself where no framework prices it.

    Args:
        chain: The captured model.
        sizes: Sizes of the model.
        cluster: The devices that it is planned for.
    """
    has_tables = all((find_kind(kind) or kind) in GPUS for kind in cluster.kinds)
    layer = _layers(chain, sizes.layers)
    if not has_tables or chain.precision not in HALVES or layer is None:
        return chain
    setting = make_pricing_setting(
        sizes,
        cluster,
        precision=chain.precision,
        optimizer=chain.optimizer,
        memory_limit=find_memory_limit(cluster),
    )
    sized = price_chain_by_sizes(chain, setting, layer)
    # Sizes know fused kernels alone; what the model writes out takes longer.
    by_blocks = with_blocks(chain, cluster)
    recognition = by_blocks.recognition
    if recognition is None or not recognition.has_two_prices:
        return replace(sized, recognition=recognition)
    return replace(
        sized,
        recognition=recognition,
        alternative=by_blocks,
        notices=(*chain.notices, recognition.line()),
    )


def with_blocks(chain: Chain, cluster: Cluster) -> Chain:
    """Return a captured chain whose blocks PyTorch's framework prices (`segments.block_costs`).

    A line says what share of a micro-batch is recognised, and which modules are not. The chain
    itself is returned where no framework prices it, or no layer has a product or an attention that
    is recognised.

    Args:
        chain: The captured model, priced by the kernels that were captured.
        cluster: The devices that it is planned for.
    """
    source = chain.source
    assert isinstance(source, ModelCosts)
    has_tables = all((find_kind(kind) or kind) in GPUS for kind in cluster.kinds)
    if not has_tables or chain.precision not in HALVES:
        return chain
    options = FrameworkOptions(
        precision=chain.precision,
        optimizer=chain.optimizer,
        memory_limit=find_memory_limit(cluster),
    )
    costs = BlockCosts(
        layers=with_half_precision(source.layers),
        cuts=source.cuts,
        fabric=source.fabric,
        batch=source.batch,
        precision=source.precision,
        optimizer=source.optimizer,
        framework=adapt_framework(cluster, options),
    )
    costs.parts = source.parts
    if not costs.has_recognised_layers:
        return chain
    recognition = costs.recognition(cluster.kinds[0], 1)
    by_blocks = replace(
        chain,
        source=costs,
        border=costs.border_bytes,
        framework=costs.framework,
        recognition=recognition,
        notices=(*chain.notices, recognition.line()),
        _known={},
    )
    if not recognition.has_two_prices:
        return by_blocks
    # Intervals reach from what runs as it was captured down to one fused kernel a module.
    fused = replace(by_blocks, source=costs.fused(), _known={})
    return replace(by_blocks, alternative=fused)


def price_chain_by_sizes(
    chain: Chain, setting: PricingSetting, layer: IntArray
) -> Chain:
    """Return a captured chain whose segments are priced by sizes.

    Args:
        chain: The captured model.
        setting: Its sizes, the devices and the framework.
        layer: Number of every segment's layer, as of `SizedModelCosts`. [segments]
    """
    source = chain.source
    assert isinstance(source, ModelCosts)
    sized = SizedModelCosts(
        layers=source.layers,
        cuts=source.cuts,
        fabric=source.fabric,
        batch=source.batch,
        precision=source.precision,
        optimizer=source.optimizer,
        sizes=DecoderCosts(setting),
        layer=layer,
    )
    sized.parts = source.parts
    # What crosses from layer to layer is the stream in half precision; inside it is as captured.
    sizes = setting.decoder
    border = chain.border.copy()
    between = np.flatnonzero(layer[1:] != layer[:-1]) + 1
    border[between] = 2.0 * sizes.length * sizes.hidden
    is_layer = (layer > 0) & (layer <= sizes.layers)
    numbers = np.where(is_layer, layer - 1, -1 - np.arange(len(layer)))
    return replace(
        chain,
        source=sized,
        border=border,
        framework=setting.framework,
        layer=numbers,
        _known={},
    )


def _layers(chain: Chain, num_layers: int) -> IntArray | None:
    """Return the number of every segment's layer; None where there are not so many layers.

    What comes before the first layer is the embedding's, what comes after the last the head's, and
    what lies between two layers belongs to the one before. Some models have no cut between the
    embedding and the first layer.
    """
    inside = np.flatnonzero(chain.layers >= 0)
    numbers = chain.layers[inside]
    if len(numbers) == 0 or len(np.unique(numbers)) != num_layers:
        return None
    layer = np.zeros(len(chain), dtype=np.int32)
    layer[inside] = numbers - numbers[0] + 1
    layer = np.maximum.accumulate(layer)
    layer[inside[-1] + 1 :] = num_layers + 1
    if layer[-1] == num_layers + 1:
        return layer
    return None


def with_framework(chain: Chain, framework: Framework) -> Chain:
    """Return a captured model that a framework prices under another framework.

    Args:
        chain: The model, priced by its sizes or its blocks.
        framework: The framework whose terms price it instead.
    """
    source = chain.source
    if isinstance(source, BlockCosts):
        costs = source.with_framework(framework)
        return replace(chain, source=costs, framework=framework, _known={})
    assert isinstance(source, SizedModelCosts)
    setting = replace(source.sizes.setting, framework=framework)
    return price_chain_by_sizes(chain, setting, source.layer)
