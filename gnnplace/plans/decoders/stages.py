"""Layers of a decoder by stage, as a framework cuts them by default.

* `equal`: as many layers each; refused where the stages do not divide them (Megatron-LM).
* `even`: as many layers each; else with the ends as a layer each, where stages divide that; else
  the first stages have one more (Megatron-DeepSpeed's `uniform` and `type:transformer|embedding`).
* `cost` (nanotron): blocks in order (embedding, layers, norm, head, loss) have costs 4 h^2 + 3 h f
  a layer, v h the head, nothing else; a block stays on rank r until the sum *passes* (r + 1) / pp
  of all (nanotron, `src/nanotron/models/base.py`). Head and loss end together on the last.
* `ends` (torchtitan): embedding and head count as a layer each, layers + 2 over the stages, the
  first get one more (`distributed/pipeline_parallel.py`).
* `least`: the least largest stage, the head at the price of its operations (ours).
"""

from __future__ import annotations

from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.spec import Layers, count_layers

TOLERANCE = 1e-9


def cut_layers(
    decoder: DecoderSizes, stages: int, rule: Layers | str
) -> tuple[int, ...]:
    """Return the layers of every stage, 0 allowed. [stages]

    Args:
        decoder: Sizes of the model whose layers are cut.
        stages: The number of stages, those of a rank's chunks included.
        rule: "equal", "even", "cost", "ends", "least", or the number of every stage.

    Raises:
        InputError: If they cannot be cut so.
    """
    if rule == "cost":
        return _cut_by_cost(decoder, stages)
    if rule == "ends":
        return _with_ends(decoder.layers, stages)
    if rule == "even":
        layers = decoder.layers  # Megatron-DeepSpeed's cut
        if layers % stages and (layers + 2) % stages == 0:
            return _with_ends(layers, stages)
        least_layers, remainder = divmod(layers, stages)
        return tuple(least_layers + (k < remainder) for k in range(stages))
    if rule == "least":
        return _minimise_largest_stage(decoder, stages)
    return count_layers(rule, decoder.layers, stages)  # type: ignore[arg-type]


def _cut_by_cost(decoder: DecoderSizes, stages: int) -> tuple[int, ...]:
    """Return the layers of every stage as nanotron cuts them, by cost.

    A stage begins once the costs before it reach its part of the total. The embedding costs
    nothing, and the head its multiplications.
    """
    h = decoder.hidden
    f = decoder.feed_forward
    layer = 4.0 * decoder.queries * h + 3 * h * f
    head = float(decoder.vocabulary * h)
    total = layer * decoder.layers + head
    passed = 0.0
    rank = 0
    counts = [0] * stages
    for _ in range(decoder.layers):
        # The embedding costs nothing: what is passed before a block decides its rank.
        if rank < stages - 1 and passed >= total * (rank + 1) / stages * (
            1 - TOLERANCE
        ):
            rank += 1
        counts[rank] += 1
        passed += layer
    return tuple(counts)


def _with_ends(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of every stage as torchtitan cuts them: embedding and head count as layers.

    Raises:
        InputError: If there are too few layers for the stages.
    """
    if stages == 1:
        return (layers,)
    least_layers, remainder = divmod(layers + 2, stages)
    counts = [least_layers + (k < remainder) for k in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    if min(counts) < 0:
        raise InputError(
            f"{layers} layers with embedding and head cannot be cut over {stages}"
        )
    return tuple(counts)


def _minimise_largest_stage(decoder: DecoderSizes, stages: int) -> tuple[int, ...]:
    """Return the numbers of layers of each stage that make the largest stage as small as possible.

    A stage's size is its number of multiplications per token. The last stage has the head too.
    """
    if stages == 1:
        return (decoder.layers,)
    head = head_layers(decoder)

    def largest(last: int) -> float:
        return max(-(-(decoder.layers - last) // (stages - 1)), last + head)

    last = min(range(decoder.layers // stages, -1, -1), key=largest)
    least_layers, remainder = divmod(decoder.layers - last, stages - 1)
    return (*(least_layers + (k < remainder) for k in range(stages - 1)), last)


def head_layers(decoder: DecoderSizes) -> float:
    """Return the multiplications of the head, per token, as a multiple of a layer's."""
    of_layer = decoder.layer_matrices + decoder.length * decoder.queries / 2
    return decoder.vocabulary * decoder.hidden / of_layer
