"""The reader of NeuSight's steps: names of files, which passes count, layers beyond the third."""

from __future__ import annotations

import json

import pytest

from benchmarks.studies.published import neusight


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("NVIDIA_A100-PCIE-40GB", "a100"),
        ("NVIDIA_A100_80GB_PCIe", "a100-80"),
        ("NVIDIA_H100_80GB_HBM3", "h100"),
        ("NVIDIA_L4", "l4"),
        ("Tesla_P100-PCIE-16GB", "p100"),
        ("AMD_Instinct_MI210", None),
    ],
)
def test_folders_are_kinds(folder, kind):
    assert neusight.kind_of(folder) == kind


def label(tmp_path, name: str, ahead: float, back: float) -> None:
    """A file of milliseconds."""
    path = tmp_path / "neusight/label/Tesla_V100-PCIE-32GB" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "num_layer": 36,
        "e2e_latency": 0,
        "fw_latency": ahead,
        "bwall_latency": back,
    }
    path.write_text(json.dumps(content))


def test_a_forward_pass_with_the_allocator_in_it_does_not_count(tmp_path, monkeypatch):
    """Passes of 36 layers go on as from two to three: 0.1 + 36 x 0.01 s and twice that."""
    monkeypatch.setattr(
        neusight,
        "phases",
        lambda *args: (0.1 + 0.01 * args[4], 2 * (0.1 + 0.01 * args[4])),
    )
    label(tmp_path, "gpt2_large-train-1024-4", 500.0, 1000.0)
    label(tmp_path, "gpt2_large-train-1024-8", 900.0, 1000.0)
    label(tmp_path, "gpt2_large-inf-1024-4", 500.0, 0.0)
    label(tmp_path, "gpt2_large-inf-1024-4-tp4", 400.0, 0.0)
    label(tmp_path, "switchxl4-train-512-1", 400.0, 800.0)
    found = {
        o.question: (o.seconds, o.answer.step_time) for o in neusight.outcomes(tmp_path)
    }
    assert found == {
        "gpt2_large-train-1024-4, v100": (1.5, pytest.approx(3 * 0.46)),
        "gpt2_large-train-1024-8, v100": (1.0, pytest.approx(2 * 0.46)),
        "gpt2_large-inf-1024-4, v100": (0.5, pytest.approx(3 * 0.46)),
    }


def test_a_published_step_is_near(tmp_path):
    """GPT-2 large on V100 (sitar-lab/NeuSight, MIT, 6945927). Two captures take some seconds."""
    label(tmp_path, "gpt2_large-train-1024-1", 199.80060729980468, 377.12057815820314)
    (found,) = neusight.outcomes(tmp_path)
    assert found.seconds == pytest.approx(0.5769, rel=1e-3)
    assert abs(found.error) < 0.08


def test_steps_under_torch_compile_are_priced_as_such(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        neusight, "phases", lambda *args: asked.append(args[6]) or (0.01, 0.02)
    )
    label(tmp_path, "gpt2_large-train-1024-4-fusion", 10.0, 20.0)
    (row,) = neusight.outcomes(tmp_path)
    assert asked == [True, True]
    assert row.model == "v100, compiled"
