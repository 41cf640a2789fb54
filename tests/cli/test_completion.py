"""Shells complete commands, options and names: bash runs the script."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gnnplace.cli.commands import COMMANDS
from gnnplace.cli.main import run
from gnnplace.plans.launchers import NAMES

COMPLETE = """
{script}
COMP_WORDS=({words}"{last}")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_gnnplace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["completion", "bash"]) == 0
    return capsys.readouterr().out


def completed(script: str, line: str) -> list[str]:
    """What bash offers for the last word of a line."""
    *words, last = line.split(" ")
    text = COMPLETE.format(
        script=script, words="".join(f'"{word}" ' for word in words), last=last
    )
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_what_can_stand_there(script: str) -> None:
    assert completed(script, "gnnplace ") == list(COMMANDS)
    assert completed(script, "gnnplace pla") == ["place", "plan"]
    names = ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"]
    assert completed(script, "gnnplace plan Qwen/Qwen3-8") == names
    assert "Llama-3.1-70B" in completed(script, "gnnplace plan Llama-3.1-")
    assert completed(script, "gnnplace plan Qwen/Qwen3-8B --cluster nvlink-a100-") != []
    assert completed(script, "gnnplace convert plan.json --to ") == list(NAMES)
    assert completed(script, "gnnplace place x.json --placer m-") == ["m-topo", "m-sct"]
    assert completed(script, "gnnplace plan Qwen/Qwen3-8B --lo") == ["--lora"]
    assert {"-o", "--output"} <= set(completed(script, "gnnplace convert plan.json -"))
    assert completed(script, "gnnplace simulate nothing-li") == []


def test_zsh_has_the_same_words(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#compdef gnnplace\n")
    assert text.endswith(script)
    if shutil.which("zsh"):
        done = subprocess.run(
            ["zsh", "-fc", text], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""


def test_another_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "fish"]) == 2
    assert (
        capsys.readouterr().err == "gnnplace: completion 'fish': must be bash or zsh\n"
    )
