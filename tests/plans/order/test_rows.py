"""Rows of actions: words, and messages that are put in so that nothing waits in a circle."""

import copy

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.pipelining import PipelineStage, schedules

from gnnplace.errors import FormatError
from gnnplace.plans.order import orders
from gnnplace.plans.order.checker import check_actions
from gnnplace.plans.order.orders import Action, Pipeline, chunk_ranks, limits
from gnnplace.plans.order.rows import as_csv, parse_rows, with_messages, words


def line(schedule, ranks, count, rng=None):
    stages = chunk_ranks(schedule, ranks)
    rng = rng or np.random.default_rng(0)
    seconds = tuple(tuple(rng.uniform(0.2, 2.0, 3)) for _ in stages)
    apart = schedule in ("zero-bubble", "v")
    sent = (0.1,) * (len(stages) - 1)
    return Pipeline(stages, seconds, sent, count, apart, limits(schedule, ranks, count))


def rows_of(schedule, ranks=4, count=4, rng=None):
    """Rows of a schedule with messages, and the rank of every stage."""
    it = line(schedule, ranks, count, rng)
    return with_messages(
        orders.make_rank_actions(schedule, it).orders(), it.rank
    ), it.rank


@pytest.mark.parametrize(
    "schedule", ["1f1b", "zero-bubble", "interleaved:2", "interleaved:3", "v"]
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_schedule_gets_messages_that_pass_the_checker(schedule, ranks):
    for seed in range(5):
        rows, stages = rows_of(schedule, ranks, 2 * ranks, np.random.default_rng(seed))
        checked = check_actions(rows, stages, 2 * ranks)
        assert max(checked.flying) <= 2 * ranks


def test_words_are_read_as_they_are_written():
    rows, _ = rows_of("v", 2)
    assert parse_rows(words(rows), "plan") == rows
    assert parse_rows([["2SEND_B13"]], "plan") == ((Action(2, "SEND_B", 13),),)


@pytest.mark.parametrize("word", ["0X1", "F0", "0F", "0UNSHARD", "0F1 ", "", "-1F0"])
def test_what_is_no_word_is_named_with_its_place(word):
    with pytest.raises(FormatError, match=r"plan: actions\[1\]\[0\]"):
        parse_rows([["0F0"], [word]], "plan")


def test_rows_with_messages_stay_as_they_are():
    rows, stages = rows_of("1f1b", 2, 2)
    assert with_messages(rows, stages) == rows


def test_a_message_stands_right_after_its_pass_and_not_after_the_pass_that_reads_it():
    rows, _ = rows_of("1f1b", 3, 4)
    for row in rows:
        for k, action in enumerate(row):
            if action.kind == "F" and action.chunk:
                received = Action(action.chunk, "RECV_F", action.microbatch)
                assert row.index(received) < k


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved:2"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_pytorch_loads_rows_as_a_file(schedule, ranks, tmp_path):
    """Its own loader finds each stage's rank, and where messages go, with nothing that waits."""
    rows, stages = rows_of(schedule, ranks, 2 * ranks)
    (tmp_path / "rows.csv").write_text(as_csv(rows, len(stages)))
    loader = object.__new__(schedules.PipelineScheduleMulti)
    loader._n_microbatches, loader._num_stages, loader._stages = (
        2 * ranks,
        len(stages),
        [],
    )
    loader.pp_group_size, loader.rank, loader.pipeline_order = ranks, 0, {}
    loader._load_csv(str(tmp_path / "rows.csv"))
    assert loader.stage_index_to_group_rank == dict(enumerate(stages))
    loaded = {
        r: [x for x in row if x is not None] for r, row in loader.pipeline_order.items()
    }
    for rank, row in enumerate(rows):
        assert [str(x) for x in loaded[rank]] == [
            str(x) for x in row if "_" not in x.kind
        ]
    sent = schedules._add_send_recv(loaded, stages.__getitem__, len(stages))
    assert sum(map(len, sent.values())) == sum(map(len, rows))


def run_rows(rank, folder, count):
    """A rank of two: its stage under PyTorch's schedule, beside the whole model by itself."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
    given, target = torch.randn(2 * count, 8), torch.randn(2 * count, 8)
    alone = copy.deepcopy(parts)
    nn.functional.mse_loss(alone[1](alone[0](given)), target).backward()
    stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"))
    schedule = schedules.PipelineScheduleMulti(
        [stage], count, loss_fn=nn.functional.mse_loss
    )
    schedule._load_csv(f"{folder}/rows.csv")
    schedule.step(*(() if rank else (given,)), **({"target": target} if rank else {}))
    for mine, expected in zip(
        parts[rank].parameters(), alone[rank].parameters(), strict=True
    ):
        torch.testing.assert_close(mine.grad, expected.grad)
    distributed.destroy_process_group()


def test_pytorch_runs_rows_as_a_file(tmp_path):
    """Zero-bubble, which it has no name for; two processes import torch, some seconds each."""
    rows, stages = rows_of("zero-bubble", 2, 4)
    (tmp_path / "rows.csv").write_text(as_csv(rows, len(stages)))
    multiprocessing.spawn(run_rows, (str(tmp_path), 4), nprocs=2)
