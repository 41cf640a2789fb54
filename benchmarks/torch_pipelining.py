"""Pipelines on two workers: placed micro-batches against PyTorch's own schedules, side by side.

The model is a chain of blocks: the case that `torch.distributed.pipelining` is made for. It gets
the blocks cut in the middle, one process and one thread a stage, gloo between them, the same
micro-batches and the same SGD; one worker alone gets the whole batch. Rounds alternate, and of each
row the least disturbed round counts. Wall clock: run it on an idle machine.

    python benchmarks/torch_pipelining.py [--model transformer|mlp] [--microbatches 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import gnnplace
from gnnplace.run.workers.tasks import available_cores

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
LOSS = nn.functional.mse_loss
RATE = 0.01


def model_of(name: str, batch: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A chain of eight equal blocks, an input and a target."""
    torch.manual_seed(0)
    if name == "mlp":
        blocks = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)]
        return nn.Sequential(*blocks), torch.randn(batch, 512), torch.randn(batch, 512)
    layer = {"d_model": 128, "nhead": 4, "dim_feedforward": 512, "dropout": 0.0}
    blocks = [nn.TransformerEncoderLayer(**layer, batch_first=True) for _ in range(8)]
    shape = (batch, 32, 128)
    return nn.Sequential(*blocks), torch.randn(*shape), torch.randn(*shape)


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", default="transformer", choices=("transformer", "mlp")
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--placer", default="best")
    parser.add_argument("--budget", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    rivals: dict[str, Callable[[], float]] = {
        "one worker, whole batch": placed(arguments, 1, "single"),
        **{
            f"torch, {name}, even split": pipelined(arguments, name)
            for name in SCHEDULES
        },
        f"placed, {arguments.placer}": placed(
            arguments, arguments.microbatches, arguments.placer
        ),
    }
    times = {name: [] for name in rivals}
    for _ in range(arguments.rounds):
        for name, run in rivals.items():
            times[name].append(run())
    alone = min(times["one worker, whole batch"])
    print(
        f"{arguments.model}, batch {arguments.batch}, {arguments.microbatches} micro-batches\n"
    )
    print("| trained by | step, wall | speed-up |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * min(seconds):.1f} ms | {alone / min(seconds):.2f}x |")
    sys.stdout.flush()


def placed(
    arguments: argparse.Namespace, microbatches: int, placer: str
) -> Callable[[], float]:
    """Runs a placement; the median step."""
    model, words, target = model_of(arguments.model, arguments.batch)
    options = gnnplace.CaptureOptions(microbatches=microbatches)
    program = gnnplace.capture(model, (words, target), loss=LOSS, options=options)
    problem = gnnplace.profile(program, "cpu:2", options=options)
    gnnplace.warm([placer])
    result = gnnplace.place(problem, placer=placer, budget=arguments.budget)

    def run() -> float:
        done = gnnplace.execute(
            program,
            problem,
            result.placement,
            run=gnnplace.ExecutionOptions(steps=arguments.steps),
        )
        assert done.verification.passed
        return done.execution.wall_step_time

    return run


def pipelined(arguments: argparse.Namespace, schedule: str) -> Callable[[], float]:
    """Runs PyTorch's schedule on two processes; the median step."""

    def run() -> float:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        results = processes.get_context("spawn").SimpleQueue()
        given = (
            arguments.model,
            arguments.batch,
            arguments.microbatches,
            arguments.steps,
        )
        processes.spawn(_stage, (port, schedule, given, results), nprocs=2)
        return float(results.get())

    return run


def _stage(
    rank: int,
    port: int,
    schedule: str,
    given: tuple[str, int, int, int],
    results: object,
) -> None:
    name, batch, microbatches, steps = given
    cores = available_cores()
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    model, words, target = model_of(name, batch)
    half = len(model) // 2
    part = model[:half] if rank == 0 else model[half:]
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    runner = SCHEDULES[schedule](stage, microbatches, loss_fn=LOSS)
    optimizer = torch.optim.SGD(part.parameters(), lr=RATE)
    times = []
    for _ in range(3 + steps):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        runner.step(words) if rank == 0 else runner.step(target=target, losses=[])
        optimizer.step()  # the first stage is the last to be done
        times.append(time.perf_counter() - start)
    if rank == 0:
        results.put(median(times[3:]))  # type: ignore[attr-defined]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
