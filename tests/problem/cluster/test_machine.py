"""The processor's name, where the kernel tells it and where it does not."""

from __future__ import annotations

import platform

from gnnplace.problem.cluster import machine


def test_the_first_processor_names_the_machine(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\nmodel name\t: A CPU: fast\nmodel name\t: another\n"
    )
    monkeypatch.setattr(machine, "INFO", info)
    assert machine.processor_name() == "A CPU: fast"


def test_without_the_kernel_python_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "INFO", tmp_path / "none")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv")
    assert machine.processor_name() == "riscv"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert machine.processor_name() == "unknown"
