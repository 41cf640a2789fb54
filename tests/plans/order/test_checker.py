"""The checker refuses rows that cannot run or compute something else; PyTorch's loader does not."""

import csv

import pytest
from torch.distributed.pipelining import schedules

from gnnplace.errors import FormatError
from gnnplace.plans.order.checker import check_actions, live_bytes
from gnnplace.plans.order.orders import Action
from gnnplace.plans.order.rows import parse_rows, words
from tests.plans.order.test_rows import rows_of

COUNT = 4


def broken(change, schedule="1f1b", ranks=2):
    """Rows of a schedule after a change by hand, and the rank of every stage."""
    rows, stages = rows_of(schedule, ranks, COUNT)
    told = words(rows)
    change(told)
    return told, stages


def without(*gone):
    def change(rows):
        for row in rows:
            row[:] = [word for word in row if word not in gone]

    return change


def swapped(rank, one, other):
    def change(rows):
        row = rows[rank]
        i, j = row.index(one), row.index(other)
        row[i], row[j] = row[j], row[i]

    return change


def also(rank, word, after):
    def change(rows):
        rows[rank].insert(rows[rank].index(after) + 1, word)

    return change


def renamed(rank, one, other):
    def change(rows):
        rows[rank][rows[rank].index(one)] = other

    return change


def moved(word, source, target):
    def change(rows):
        rows[source].remove(word)
        rows[target].append(word)

    return change


def two_swapped(rows):
    """Micro-batches 2 and 3 change places in every pass and message."""
    for row in rows:
        row[:] = [
            word[:-1] + {"2": "3", "3": "2"}.get(word[-1], word[-1]) for word in row
        ]


def circle(rows):
    """A rank waits for an answer before it asks."""
    rows[0].remove("0RECV_B0")
    rows[0].insert(0, "0RECV_B0")


# What is done to the rows; what the checker says; whether PyTorch's loader takes it all the same.
CASES = {
    "a forward pass is missing": (without("0F1"), "0F1 is missing", False),
    "a backward pass is missing": (without("1B2"), "1B2 is missing", False),
    "a forward pass twice": (also(0, "0F1", "0F1"), "0F1 is there 2 times", True),
    "a backward pass twice": (also(1, "1B0", "1B0"), "1B0 is there 2 times", True),
    "a send is missing": (without("0SEND_F2"), "0SEND_F2 is missing", True),
    "a receive is missing": (without("1RECV_F2"), "1RECV_F2 is missing", True),
    "a send twice": (also(0, "0SEND_F0", "0SEND_F0"), "0SEND_F0 is there 2 times", True),
    "a message nobody needs": (also(1, "1SEND_F0", "1F0"), "is of a message that no stage", True),
    "receives out of order": (
        swapped(1, "1RECV_F0", "1RECV_F1"), "keep their order", True),
    "the last stage's forward passes out of order": (
        two_swapped, "order of micro-batches", True),
    "a pass before what it needs": (
        swapped(1, "1RECV_F0", "1F0"), "a deadlock", True),
    "a backward pass before its forward pass": (swapped(1, "1F0", "1B0"), "a deadlock", False),
    "each waits for the other": (circle, "a deadlock", True),
    "a stage on another's rank": (moved("1B3", 1, 0), "its stage is on rank 1", False),
    "a stage that is not there": (also(1, "7F0", "1F0"), "is of stage 7 of 2", False),
    "a micro-batch that is not there": (also(1, "1F9", "1F3"), "of micro-batch 9", False),
    "weight gradients beside a whole backward pass": (
        also(1, "1W0", "1B0"), "gradients would count twice", False),
    "gradients of activations alone": (renamed(1, "1B0", "1I0"), "1W0 is missing", False),
    "a word that is none": (renamed(1, "1B0", "1Z0"), "is no action", False),
}  # fmt: skip


def loaded_by_pytorch(rows, stages, path):
    """Whether PyTorch's loader takes rows; it is given everything that it checks."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    runtime = object.__new__(schedules._PipelineScheduleRuntime)
    runtime._n_microbatches, runtime._num_stages = COUNT, len(stages)
    runtime.pp_group_size, runtime.rank, runtime._stages = max(stages) + 1, 0, []
    try:
        runtime._load_csv(str(path), format="compute_comms")
    except (ValueError, AssertionError, RuntimeError, KeyError):
        return False
    return set(runtime.pipeline_order_with_comms) == {0, 1}


@pytest.mark.parametrize("name", CASES)
def test_rows_broken_by_hand_are_refused_in_one_line(name, tmp_path):
    change, told, taken = CASES[name]
    rows, stages = broken(change)
    with pytest.raises(FormatError) as fault:
        check_actions(parse_rows(rows, "plan.json"), stages, COUNT, "plan.json")
    message = str(fault.value)
    assert told in message
    assert message.startswith("plan.json: actions")
    assert "\n" not in message
    assert loaded_by_pytorch(rows, stages, tmp_path / "rows.csv") == taken


def test_pytorch_loads_rows_that_are_right_too(tmp_path):
    rows, stages = broken(lambda rows: None)
    assert loaded_by_pytorch(rows, stages, tmp_path / "rows.csv")


def test_the_number_of_rows_is_that_of_ranks():
    rows, stages = rows_of("1f1b", 2, COUNT)
    with pytest.raises(FormatError, match="1 rows for 2 ranks"):
        check_actions(rows[:1], stages, COUNT)


def test_what_is_in_flight_is_counted():
    rows, stages = rows_of("1f1b", 2, COUNT)
    checked = check_actions(rows, stages, COUNT, saved=(10.0, 7.0))
    assert checked.flying == (2, 1)
    assert checked.live == (20.0, 7.0)
    eager = parse_rows(
        [[*(f"0F{m}" for m in range(COUNT)), *(f"0B{m}" for m in range(COUNT))]], "p"
    )
    assert check_actions(eager, (0,), COUNT, saved=(10.0,)).live == (10.0 * COUNT,)


def test_activations_live_until_the_weight_gradients_are_made():
    row = [Action(0, "F", 0), Action(0, "I", 0), Action(0, "F", 1), Action(0, "W", 0)]
    assert live_bytes(tuple(row), [3.0]) == 6.0


def test_mixed_backward_passes_are_right():
    rows, stages = rows_of("1f1b", 2, COUNT)
    told = words(rows)
    at = told[1].index("1B0")
    told[1][at : at + 1] = ["1I0"]
    told[1].append("1W0")
    check_actions(parse_rows(told, "plan"), stages, COUNT)
