"""Placed programs on GPUs that are only claimed: right ones pass, wrong ones are named."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gnnplace
from gnnplace import zoo
from gnnplace.costs.profiling.measurement import straight_line
from gnnplace.costs.profiling.profiler import profile
from gnnplace.errors import InputError, MismatchError
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.placement import Placement, write_placement
from gnnplace.run.checking import dry_running as dry
from gnnplace.run.checking.dry_running import DryRun, dry_run, walk
from gnnplace.run.placed import worker
from gnnplace.run.placed.plan import ExecutionPlan, plan_execution
from gnnplace.tracing.guards.claims import (
    Claims,
    DeviceFault,
    DeviceWatch,
    make_claimed_tensor,
)
from gnnplace.tracing.models import capture, capture_model
from gnnplace.tracing.program import operations
from gnnplace.tracing.program.microbatching import with_program_microbatches
from gnnplace.tracing.program.program import Program, ProgramInput
from tests.run.programs import (
    ProgramBuilder,
    aten,
    problem_of,
    random_placement,
    two_towers,
)

PLACERS = ("single", "round-robin", "best")
SIZES = "batch=4&length=8&vocab_size=64"
LAYERS = f"{SIZES}&num_hidden_layers=1&hidden_size=32&num_attention_heads=2&intermediate_size=64"
HUGGING_FACE = (
    f"hf:gpt2?{SIZES}&n_layer=1&n_embd=32&n_head=2",
    f"hf:bert?{LAYERS}",
    f"hf:llama?{LAYERS}&num_key_value_heads=1",
    f"hf:t5?{SIZES}&num_layers=1&d_model=32&d_ff=64&num_heads=2&d_kv=16",
    "hf:vit?batch=4&image_size=32&num_hidden_layers=1&hidden_size=32&num_attention_heads=2"
    "&intermediate_size=64",
)


def run(
    program: Program, devices: int = 2, seed: int = 0, standing: bool = False
) -> DryRun:
    problem = problem_of(program, devices)
    return dry_run(program, problem, random_placement(problem, seed), standing=standing)


def fault_of(program: Program) -> str:
    found = run(program, 1)
    assert not found.passed
    assert "\n" not in found.summary()
    return found.summary()


def with_op(name: str, target: object, *args: object, **kwargs: object) -> Program:
    """A program with this op between its input and its loss."""
    b = ProgramBuilder()
    x = b.input("x", "input", 4, 4)
    given = [x if a == "x" else a for a in args]
    made = b.op(name, target, *given, **kwargs)
    b.loss = b.op("loss", aten.mean.default, b.op("sum", aten.add.Tensor, x, made))
    return b.program()


# Right programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("standing", [False, True])
def test_a_right_program_passes_and_says_what_was_looked_at(standing: bool) -> None:
    found = run(two_towers(), 4, standing=standing)
    assert found.passed, found.summary()
    assert found.ops > 30
    assert found.messages > 0
    assert set(found.devices) <= {f"cuda:{d}" for d in range(4)}
    assert "every tensor on its worker's device" in found.summary()


def test_devices_among_the_arguments_become_the_workers() -> None:
    there = torch.device("cpu")
    assert run(with_op("zeros", aten.zeros.default, [4, 4], device=there)).passed
    assert run(with_op("range", aten.arange.default, 4, device=there)).passed
    assert run(with_op("number", aten.scalar_tensor.default, 2.0, device=there)).passed


def test_a_number_on_the_host_is_a_legal_argument() -> None:
    """Kernels for CUDA take 0-dimensional CPU tensors; only the host's own numbers stay there."""
    program = two_towers()
    state = ProgramInput("optimizer", "w:step", replace(program.values["loss"]))
    assert state.home(torch.device("cuda", 1)) == torch.device("cpu")
    parameter = program.inputs["parameter.w0.0"]
    assert parameter.home(torch.device("cuda", 1)) == torch.device("cuda", 1)
    watch = DeviceWatch(torch.device("cuda", 0))
    with Claims().made(), torch.inference_mode():
        x = make_claimed_tensor(parameter.info, watch.device)
        number, whole = (
            torch.zeros(()),
            make_claimed_tensor(parameter.info, torch.device("cpu")),
        )
        with watch:
            assert aten.mul.Tensor(x, number).device == watch.device
            assert aten.add.Tensor(number, 1).device.type == "cpu"
            with pytest.raises(DeviceFault, match="reads a tensor of shape"):
                aten.mul.Tensor(x, whole)


def test_the_reference_and_the_profiled_program_pass_too() -> None:
    """What `execute` compares with, and what op times are measured by, on a claimed GPU."""
    work = zoo.build("gpt2", batch=2, layers=1)
    program = capture(work.model, work.inputs, loss=work.loss, optimizer="adamw")
    watch = DeviceWatch(torch.device("cuda", 0))
    with Claims().made(), torch.inference_mode():
        tensors = {
            name: make_claimed_tensor(entry.info, entry.home(watch.device))
            for name, entry in program.inputs.items()
        }
        step = straight_line(program, watch.device)
        with watch:
            step(tensors, lambda: None)
    assert watch.ops > len(program.ops)


class Noise(nn.Module):
    """Draws by an op that reads no tensor, and by one that does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(self.layer(x), 0.5)
        return (hidden + torch.rand(8)).square().mean()


def test_random_ops_draw_from_the_seeded_generator_of_their_device() -> None:
    program = capture(Noise(), torch.randn(4, 8))
    assert sum(op.target is operations.seeded for op in program.ops) >= 2
    assert run(program).passed


# Wrong programs ----------------------------------------------------------------------------------


def on_the_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu()


def told(x: torch.Tensor) -> torch.Tensor:
    return x.mul(x.sum().item())


def of_a_cpu(x: torch.Tensor) -> torch.Tensor:
    image, kernel = x.reshape(1, 1, 4, 4), x.new_ones(1, 1, 1, 1)
    made = aten.mkldnn_convolution.default(
        image, kernel, None, (0, 0), (1, 1), (1, 1), 1
    )
    return made.reshape(4, 4)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            with_op("zeros", aten.zeros.default, [4, 4], device="cpu"),
            "cuda:0: op 'zeros': aten.zeros.default makes a tensor on cpu, not cuda:0",
        ),
        (
            with_op("count", aten.scalar_tensor.default, 2.0, device="cpu"),
            "cuda:0: op 'count': aten.scalar_tensor.default makes a tensor on cpu, not cuda:0",
        ),
        (
            with_op("back", on_the_host, "x"),
            "aten._to_copy.default makes a tensor on cpu",
        ),
        (
            with_op("told", told, "x"),
            "op 'told': aten.item.default reads a number from cuda:0",
        ),
        (
            with_op(
                "drop", lambda x: aten.native_dropout.default(x, 0.5, True)[0], "x"
            ),
            "op 'drop': aten.native_dropout.default draws from the generator of cuda:0, and none",
        ),
        (
            with_op("host", of_a_cpu, "x"),
            "op 'host': aten.mkldnn_convolution.default has no kernel for CUDA",
        ),
    ],
)
def test_an_op_in_the_wrong_place_is_named(program: Program, said: str) -> None:
    assert said in fault_of(program)


def split_plan() -> ExecutionPlan:
    """A chain over two devices: the second one needs what the first one made."""
    b = ProgramBuilder()
    x = b.input("x", "input", 4, 4)
    half = b.op("half", aten.mul.Tensor, x, 0.5)
    b.loss = b.op("loss", aten.mean.default, half)
    program = b.program()
    problem = problem_of(program, 2)
    plan = plan_execution(program, problem, Placement(np.array([0, 1], np.int32)))
    assert len(plan.transfers) == 1
    return plan


def without(plan: ExecutionPlan, **what: tuple[int, ...]) -> ExecutionPlan:
    """The plan with other receives or sends in every segment."""
    segments = tuple(tuple(replace(s, **what) for s in each) for each in plan.segments)
    return replace(plan, segments=segments)


def test_a_tensor_that_is_not_sent_is_named() -> None:
    plan = split_plan()
    assert walk(plan).passed
    (fault,) = walk(without(plan, sends=(), receives=())).faults
    assert str(fault) == (
        "cuda:1: op 'loss': value 'half' is neither made there nor sent there"
    )
    (fault,) = walk(without(plan, sends=())).faults
    assert str(fault) == "cuda:1: message 0 is received there but never sent"


def test_state_on_another_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ProgramInput.home

    def elsewhere(entry: ProgramInput, device: torch.device) -> torch.device:
        return (
            torch.device("cuda", 3) if entry.source == "w0.0" else home(entry, device)
        )

    monkeypatch.setattr(ProgramInput, "home", elsewhere)
    said = fault_of(two_towers())
    assert (
        "op 't0.0': aten.t.default reads a tensor of shape (8, 8) on cuda:3, not cuda:0"
        in said
    )


def test_a_count_of_steps_on_the_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was: every update of AdamW waited for the GPU."""
    monkeypatch.setattr(ProgramInput, "home", lambda entry, device: device)
    program = capture(
        nn.Linear(4, 4), torch.randn(2, 4), loss=torch.sum, optimizer="adamw"
    )
    assert "op 'update." in (said := fault_of(program))
    assert "reads a number from cuda:0" in said


def test_a_view_that_only_a_cpus_strides_allow_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it was: attention lays its result out otherwise on a GPU."""
    work = zoo.build("gpt2", batch=2, layers=1)
    program = capture(work.model, work.inputs, loss=work.loss)
    assert run(program, 1).passed
    keep = worker.on_device
    monkeypatch.setattr(
        worker,
        "on_device",
        lambda v, device: keep(v, device) if v is not aten.view.default else v,
    )
    assert "Cannot view a tensor" in fault_of(program)


def test_statistics_of_norms_travel_as_the_gpu_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it was: a message of bfloat16 for a mean that is float32 there."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    program = capture(model, torch.randn(4, 8), loss=torch.sum, dtype="bfloat16")
    assert all(run(program, 4, seed).passed for seed in range(3))
    monkeypatch.setattr(dry, "move_to_cuda", lambda program: program)
    said = fault_of(program)
    assert (
        "value 'native_layer_norm.1' is float32[4, 1]; bfloat16[4, 1] was captured"
        in said
    )


def test_a_claim_that_does_not_fit_is_refused() -> None:
    program = two_towers()
    problem = problem_of(program, 3)
    placement = Placement(
        np.arange(problem.num_units, dtype=np.int32)[problem.unit_of] % 3
    )
    with pytest.raises(InputError, match="the placement uses device 2; claim cuda:3"):
        dry_run(program, problem, placement, claim="cuda:2")
    for claim in ("cuda", "cpu:2", "cuda:0", "4"):
        with pytest.raises(InputError, match="give cuda:N"):
            dry_run(program, problem, placement, claim=claim)


# Captured models ---------------------------------------------------------------------------------


def gpus() -> Cluster:
    names = [f"gpu:{d}" for d in range(4)]
    devices = tuple(Device(name=name, kind="h100", memory=1e15) for name in names)
    links = tuple(
        Link(source=a, target=b, latency=1e-5, bandwidth=2e10)
        for a, b in permutations(names, 2)
    )
    return Cluster(devices, links)


def check(
    model: str, options: gnnplace.CaptureOptions, placers: tuple[str, ...] = PLACERS
) -> None:
    """Walks a model placed by each of these, with the workers of `execute` and of `compile`."""
    program = capture_model(model, options=options, fake=True)
    problem = profile(program, gpus(), microbatches=options.microbatches)
    whole = with_program_microbatches(program, options.microbatches)
    for placer in placers:
        placement = gnnplace.place(problem, placer=placer, budget=0).placement
        for standing in (False, True):
            found = dry_run(whole, problem, placement, standing=standing)
            assert found.passed, (model, placer, found.summary())
            assert found.ops > len(whole.ops) / 2


def parse_options(
    microbatches: int, optimizer: str, dtype: str
) -> gnnplace.CaptureOptions:
    return gnnplace.CaptureOptions(
        optimizer=optimizer,
        dtype=dtype,
        microbatches=microbatches,
        accept_other_loss=True,
    )


@pytest.mark.parametrize(
    ("model", "microbatches", "optimizer", "dtype"),
    [
        ("mlp?depth=2", 1, "adamw", "bfloat16"),
        ("two_tower", 4, "adamw", "float32"),
        pytest.param("small_resnet", 1, "sgd", "bfloat16", marks=pytest.mark.campaign),
    ],
)
def test_a_slice_of_the_zoo(
    model: str, microbatches: int, optimizer: str, dtype: str
) -> None:
    check(model, parse_options(microbatches, optimizer, dtype), ("round-robin",))


@pytest.mark.campaign
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("model", zoo.list_workload_names())
def test_the_whole_zoo(
    model: str, microbatches: int, optimizer: str, dtype: str
) -> None:
    batch = max(zoo.default_batch(model), microbatches)
    check(f"{model}?batch={batch}", parse_options(microbatches, optimizer, dtype))


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (HUGGING_FACE[0], "bfloat16"),
        (HUGGING_FACE[1], "float32"),
        *(
            pytest.param(m, "float32", marks=pytest.mark.campaign)
            for m in HUGGING_FACE[2:]
        ),
    ],
)
def test_hugging_face(model: str, dtype: str) -> None:
    check(model, parse_options(1, "adamw", dtype), ("round-robin",))


@pytest.mark.campaign
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", HUGGING_FACE)
def test_all_of_hugging_face(model: str, dtype: str, microbatches: int) -> None:
    check(model, parse_options(microbatches, "adamw", dtype))


@pytest.mark.parametrize(
    ("microbatches", "kind"),
    [(1, torch.optim.AdamW), (2, torch.optim.AdamW), (1, torch.optim.RMSprop)],
)
def test_what_compile_makes_passes(
    microbatches: int, kind: type[torch.optim.Optimizer]
) -> None:
    """With the user's own optimizer, its groups and constants that may change between steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]
    batch = torch.randn(4, 8)
    share = capture(
        model, batch[: 4 // microbatches], loss=torch.mean, optimizer="adamw"
    )
    problem = profile(replace(share, initial={}), gpus(), microbatches=microbatches)
    placement = gnnplace.place(problem, placer="round-robin", budget=0).placement
    step = gnnplace.compile(
        model, placement, optimizer, loss=torch.mean, problem=problem
    )
    found = dry_run(*step.capture_placed_program((batch,)), standing=True)
    assert found.passed, found.summary()
    assert len(found.devices) == 4


def test_the_verb_takes_names_and_files(tmp_path: Path) -> None:
    program = capture_model("mlp?depth=2", fake=True)
    problem = profile(program, gpus())
    placement = gnnplace.place(problem, placer="round-robin", budget=0).placement
    write_placement(tmp_path / "p.json", placement, problem)
    assert gnnplace.dry_run("mlp?depth=2", tmp_path / "p.json").devices == tuple(
        f"cuda:{d}" for d in range(4)
    )
    assert gnnplace.dry_run(program, placement, problem).passed
    with pytest.raises(MismatchError, match="another problem"):
        gnnplace.dry_run("mlp?depth=1", tmp_path / "p.json")
