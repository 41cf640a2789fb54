"""The processor's name, where the kernel tells it and where it does not."""

from __future__ import annotations

import platform

from gnnplace.problem.cluster.machine import processor_name


def test_the_first_processor_names_the_machine(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A CPU: fast\nmodel name\t: another\n")
    assert processor_name(info) == "A CPU: fast"


def test_without_the_kernel_python_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv")
    assert processor_name(tmp_path / "none") == "riscv"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert processor_name(tmp_path / "none") == "unknown"
