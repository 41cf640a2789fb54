from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.orders.statistics import (
    Losses,
    halves,
    one_a_family,
    one_for_all,
    ranking,
    ratio_interval,
    resampled_means,
    shares_of_variance,
    worth,
)

ORDERS = ("a", "b", "c")
FAMILIES = ("f",) * 20 + ("g",) * 20


def noise(rng, spread=0.05):
    return rng.normal(0.0, spread, (3, 3, 40))


def made(values):
    return Losses(ORDERS, FAMILIES, values - values.min(axis=(0, 1)))


def by_family(rng):
    """Order a is 10 % better on f, order b on g."""
    values = noise(rng, 0.02)
    values[0, :, :20] -= 0.1
    values[1, :, 20:] -= 0.1
    return made(values)


def test_a_clear_winner_is_told_apart_and_noise_is_not():
    rng = np.random.default_rng(0)
    values = noise(rng)
    values[1] -= 0.2
    found = ranking(values, ORDERS)
    assert (found.best, found.alike, found.surely) == ("b", ("b",), 1.0)
    alike = ranking(noise(rng), ORDERS)
    assert len(alike.alike) > 1
    assert alike.alike[0] == alike.best
    assert alike.surely < 0.99


def test_orders_that_do_the_same_are_never_told_apart():
    values = noise(np.random.default_rng(1))
    values[2] = values[0]
    found = ranking(values, ORDERS)
    assert {"a", "c"} <= set(found.alike) or found.best == "b"


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng, held = np.random.default_rng(2), 0
    for _ in range(100):
        # Problems differ and seeds differ: both are resampled.
        values = rng.normal(0.0, 0.1, (1, 60)) + rng.normal(0.0, 0.02, (8, 1))
        found = ratio_interval(values)
        held += found.low <= 1.0 <= found.high
    assert held >= 85


def test_resampling_is_paired_over_orders():
    values = np.random.default_rng(3).normal(size=(1, 3, 40)).repeat(2, axis=0)
    values[1] += 0.5
    drawn = resampled_means(values, np.random.default_rng(0))
    assert np.allclose(drawn[:, 1] - drawn[:, 0], 0.5)


def test_shares_of_variance_add_up_and_name_the_cause():
    rng = np.random.default_rng(4)
    values = np.zeros((3, 3, 40))
    values[0] += 1.0
    assert shares_of_variance(Losses(ORDERS, FAMILIES, values))[
        "order"
    ] == pytest.approx(1.0)
    shares = shares_of_variance(by_family(rng))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=shares.__getitem__) == "order x family"
    seeds = np.zeros((3, 3, 40))
    seeds[0, 0], seeds[0, 1] = 1.0, -1.0
    assert shares_of_variance(Losses(ORDERS, FAMILIES, seeds))["seed"] == pytest.approx(
        1.0
    )


def test_an_order_a_family_is_worth_something_only_where_families_differ():
    losses = by_family(np.random.default_rng(5))
    found = worth(losses, one_a_family(losses), one_for_all(losses))
    assert found.high < 0.0
    assert found.mean == pytest.approx(-5.0, abs=1.5)  # 10 % of every other problem
    nothing = made(noise(np.random.default_rng(6)))
    found = worth(nothing, one_a_family(nothing), one_for_all(nothing))
    # Though the best order of each family looks better on its own problems.
    assert found.high > 0.0


def test_too_few_seeds_say_nothing():
    losses = made(noise(np.random.default_rng(7)))
    one = Losses(ORDERS, FAMILIES, losses.values[:, :1])
    assert worth(one, one_a_family(one), one_for_all(one)) is None


def test_halves_halve_every_family():
    rng = np.random.default_rng(8)
    for _ in range(20):
        mine = halves(("f",) * 7 + ("g",) * 4, rng)
        assert mine[:7].sum() in (3, 4)
        assert mine[7:].sum() == 2


def test_what_one_seed_alone_shows_is_not_sure():
    values = np.random.default_rng(9).normal(0.0, 0.01, (3, 3, 40))
    values[0, 0, :20] -= 0.3  # one training of one order happened to suit a family
    losses = made(values)
    found = worth(losses, one_a_family(losses), one_for_all(losses))
    assert found.low < 0.0 < found.high
