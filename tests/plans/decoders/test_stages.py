from __future__ import annotations

import pytest

from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.stages import cut_layers


def decoder(**sizes: int) -> DecoderSizes:
    """Llama-3-8B's sizes, with others where they are given."""
    own = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8,
           "feed_forward": 14336, "vocabulary": 128256, "length": 4096, **sizes}  # fmt: skip
    return DecoderSizes(**own)


@pytest.mark.parametrize(("stages", "counts"), [(2, (16, 12)), (4, (8, 8, 8, 4))])
def test_nanotron_cuts_its_own_example_as_its_engine_does(stages, counts):
    """3072 wide, 28 layers, 131072 words: what nanotron's engine logs of its benchmark's 3B."""
    small = decoder(hidden=3072, layers=28, feed_forward=8192, vocabulary=131072)
    assert cut_layers(small, stages, "cost") == counts


def test_torchtitan_counts_embedding_and_head_as_layers():
    """Its `generate_llm_fqn_per_model_part` of 32 layers on 4 stages."""
    assert cut_layers(decoder(), 4, "ends") == (8, 9, 8, 7)


def test_the_least_largest_stage_gives_the_head_room():
    d = decoder()
    counts = cut_layers(d, 4, "least")
    each = d.layer_matrices + d.length * d.queries / 2
    head = d.vocabulary * d.hidden

    def largest(cuts: tuple[int, ...]) -> float:
        return max(*(c * each for c in cuts[:-1]), cuts[-1] * each + head)

    every = [
        (a, b, c, 32 - a - b - c)
        for a in range(13) for b in range(13) for c in range(13) if a + b + c <= 32
    ]  # fmt: skip
    assert sum(counts) == 32
    assert largest(counts) == min(map(largest, every))


def test_megatron_deepspeed_counts_the_ends_where_that_divides():
    """BLOOM's 70 layers on 12 ranks: six each, with embedding and head as a layer."""
    assert cut_layers(decoder(layers=70), 12, "even") == (5, *[6] * 10, 5)
    assert cut_layers(decoder(layers=7), 3, "even") == (2, 3, 2)
    assert cut_layers(decoder(layers=10), 4, "even") == (2, 3, 3, 2)
    assert cut_layers(decoder(layers=11), 3, "even") == (4, 4, 3)


def test_numbers_may_be_nothing_and_must_add_up():
    assert cut_layers(decoder(layers=6), 4, (0, 3, 3, 0)) == (0, 3, 3, 0)
    with pytest.raises(InputError, match="4 numbers, one a stage, whose sum"):
        cut_layers(decoder(layers=6), 4, (1, 1, 1, 1))
    with pytest.raises(InputError, match="6 layers are no multiple of 4 stages"):
        cut_layers(decoder(layers=6), 4, "equal")
