"""Launchers whose script makes the model: their plans of captured models, in words and in files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import gnnplace
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch import captured_losses, read_launch_file
from gnnplace.launch.registry import LAUNCHERS, SCRIPTS
from gnnplace.planning import JointPlan
from gnnplace.plans import OWN, read_plan

ENCODER = (
    "hf:bert?hidden_size=512&num_hidden_layers=2&num_attention_heads=8"
    "&intermediate_size=2048&vocab_size=30522&length=128"
)
CLUSTER = "8xH100"
BATCH = 256
QUESTION = {"batch": BATCH, "precision": "bf16-mixed"}


def plan_of(model: str = ENCODER, **question: Any) -> JointPlan:
    """Return the best plan of a model on the cluster."""
    return gnnplace.plan(model, CLUSTER, **question)[0]


@pytest.fixture(scope="module")
def plan() -> JointPlan:
    """Return the default answer of an encoder, which no launcher knows by its sizes."""
    return plan_of(budget=0.0, **QUESTION)


def test_every_launcher_has_a_plan_or_a_reason(plan: JointPlan) -> None:
    """The search's plan and accelerate's stand side by side; others say why they have none."""
    entries = plan.file.alternatives
    assert set(entries) == {OWN, *LAUNCHERS}
    assert {name for name, entry in entries.items() if entry.feasible} == {
        OWN,
        *SCRIPTS,
    }
    assert plan.file.step_time == entries[OWN].step_time
    for name, entry in entries.items():
        assert entry.feasible or (entry.reason or "").startswith(f"{name}: ")


@pytest.mark.parametrize("launcher", SCRIPTS)
def test_it_is_the_fastest_that_the_launcher_has(launcher: str) -> None:
    """No ZeRO stage and no size of micro-batches is faster, each priced as a plan in words."""
    found = plan_of(launcher=launcher, batch=BATCH)
    precision = found.file.precision
    assert (
        precision == "32-true"
    )  # a model that is not of the catalogue has it by default
    stages = (0, 2, 3) if launcher == "accelerate" else (0, 1, 2, 3)
    seconds: dict[int, list[float]] = {zero: [] for zero in stages}
    for zero, size in itertools.product(stages, (1, 2, 4, 8, 16, 32)):
        words = f"dp=8,zero={zero},microbatch_size={size}"
        given = plan_of(given=words, batch=BATCH)
        seconds[zero] += [given.step_time] if given.feasible else []
    fastest = min(min(row) for row in seconds.values())
    near = [zero for zero in stages if min(seconds[zero]) <= 1.001 * fastest]
    assert found.file.stages[0].zero == near[0]
    assert found.step_time == pytest.approx(min(seconds[near[0]]), rel=1e-12)


def test_layers_are_recomputed_where_nothing_fits_without() -> None:
    """With little memory the plan recomputes, and what is lacking then is said."""
    question = {**QUESTION, "launcher": "accelerate", "batch": 8, "headroom": None}
    free = plan_of(**question)
    assert free.file.stages[0].recompute.kind == "none"
    lean = max(entry.all for entry in free.file.memory.values())
    full = plan_of(
        given="dp=8,zero=3,recompute=full",
        batch=8,
        precision="bf16-mixed",
        headroom=None,
    )
    limit = (lean + max(entry.all for entry in full.file.memory.values())) / 2
    tight = plan_of(memory_limit=limit, **question)
    assert tight.feasible
    assert max(entry.all for entry in tight.file.memory.values()) <= limit
    with pytest.raises(InfeasibleError, match="nothing fits"):
        plan_of(memory_limit=1e8, **question)


def test_its_plan_converts_without_a_price(
    plan: JointPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file holds accelerate's own plan, which is written as it is and read back the same."""
    path = tmp_path / "plan.json"
    plan.save(path)

    def refuse(*_: object) -> object:
        raise AssertionError("priced again")

    monkeypatch.setattr(captured_losses.Prices, "of", refuse)
    monkeypatch.setattr(captured_losses, "find_captured_sizes", refuse)
    exported = gnnplace.export_plan(read_plan(path), "accelerate")
    written = tmp_path / "accelerate.yaml"
    written.write_text(exported.text, encoding="utf-8")
    entry = plan.file.alternatives["accelerate"].plan
    assert entry is not None
    again = read_launch_file(written)
    assert again.zero == entry.stages[0].zero
    assert again.microbatch_size == entry.microbatch_size
    assert again.dp == 8
    assert not [loss for loss in exported.losses if loss.seconds]


def test_words_are_priced_for_a_launcher_or_refused() -> None:
    """What the launcher cannot be told is an error that says so."""
    question = {"launcher": "accelerate", **QUESTION}
    words = "dp=8,zero=2,microbatch_size=8"
    given = plan_of(given=words, **question)
    plain = plan_of(given=words, **QUESTION)
    assert given.step_time == plain.step_time
    assert given.file.launcher == "accelerate"
    with pytest.raises(InfeasibleError, match="cannot be told the plan: zero=1"):
        plan_of(given="dp=8,zero=1", **question)
    with pytest.raises(InfeasibleError, match="has no pipeline stages"):
        plan_of(given="dp=4,pp=2", **question)


def test_a_precision_that_the_launcher_lacks_is_the_reason() -> None:
    """accelerate keeps fp32 parameters; DeepSpeed has both kinds of half precision."""
    question = {**QUESTION, "precision": "bf16-master"}
    with pytest.raises(InfeasibleError, match="precision bf16-master: mixed_precision"):
        plan_of(launcher="accelerate", **question)
    assert plan_of(launcher="deepspeed", **question).feasible


@pytest.mark.parametrize(
    "words",
    [
        {"launcher": "megatron-lm"},
        {"launcher": "accelerate", "goal": "gpus"},
        {"launcher": "accelerate", "framework": "pytorch"},
        {"launcher": "accelerate", "constraints": {"pin": {"bert": ["gpu:0"]}}},
    ],
)
def test_what_needs_known_sizes_is_refused(words: dict[str, object]) -> None:
    """Launchers of known decoders, and questions about them, are refused in one line."""
    with pytest.raises(InputError, match=r"known by (their|its) sizes"):
        plan_of(**QUESTION, **words)


def test_a_batch_that_replicas_do_not_divide_names_one_that_they_do() -> None:
    """The reason says the next batch."""
    with pytest.raises(InfeasibleError, match=r"a batch of 12 .* --batch 16 is"):
        plan_of(launcher="accelerate", batch=12)


def test_a_plan_of_the_catalogue_is_priced_again_in_its_own_length() -> None:
    """The file names the model without its default length; conversion captures the same model."""
    model = "distilbert/distilbert-base-uncased"
    plan = plan_of(model, given="dp=8,zero=1,microbatch_size=16", batch=128)
    exported = gnnplace.export_plan(plan, "deepspeed")
    lines = [loss.line for loss in exported.losses]
    assert exported.seconds is not None
    assert not [line for line in lines if line.startswith("nothing is priced again")]
