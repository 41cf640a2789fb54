"""Plans of the model types of transformers, each by the command, and how each command ends.

`model_types.txt` holds the first 300 model types by name. `python -m tests.campaign.model_types -o
FILE [TYPE...]` plans those that are named, or all, and writes a line of JSON a type.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

TYPES = Path(__file__).with_name("model_types.txt").read_text().split()
FEW = 2  # layers, experts of a token and the like
EXPERTS = 4
SECONDS = 60.0
MEMORY = 10 << 30  # bytes that a command may take beside what is imported
LAYERS = re.compile(
    r"(?!num_feat_extract)(num_)?(\w+_)?(hidden_)?(n_)?layers?|n_layer|depth|num_blocks"
)
NUMBERS_OF_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
)
SMALL = {
    **dict.fromkeys(NUMBERS_OF_EXPERTS, EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), FEW),
    **dict.fromkeys(("n_group", "topk_group"), 1),
}
RAW_WORDS = re.compile(
    r"Traceback|\b(Runtime|Value|Type|Index|Key|Assertion|Attribute|NotImplemented|Name|Unbound\w*|"
    r"BackendCompiler\w*|InternalTorchDynamo|ZeroDivision|Overflow|Recursion)(Error|Failed)\b|"
    r"EnforceNotMet|gnnplace\.\w+\.\w+|0x[0-9a-f]{6,}"
)
"""What a message to a person must not hold: Python's and torch's own names of errors."""


@dataclass(frozen=True)
class Outcome:
    """How the command that plans a model type ended.

    Attributes:
        model_type: as transformers names it.
        model: what the command was given.
        kind: "planned", "refused" in one line, or "wrong".
        message: what was said where it was not planned.
        seconds: of the command.
    """

    model_type: str
    model: str
    kind: str
    message: str
    seconds: float


def small_model(model_type: str) -> str:
    """Return a model type as `hf:` names it, with two layers and four experts."""
    from transformers import AutoConfig

    fields: dict[str, Any] = {}
    # Some defaults do not pass their checks.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        fields = _small_fields(AutoConfig.for_model(model_type).to_dict())
    words = {"batch": 4, "length": 16, **fields}
    return f"hf:{model_type}?" + "&".join(
        f"{key}={_as_yaml(x)}" for key, x in words.items()
    )


def _small_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that are to be small, those of its parts too."""
    small: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict) and key.endswith("_config"):
            part = _small_fields(value)
            if part and value.get("model_type"):
                part = {"model_type": value["model_type"], **part}
            small |= {key: part} if part else {}
        elif isinstance(value, int) and not isinstance(value, bool):
            least = SMALL.get(key, FEW if LAYERS.fullmatch(key) else value)
            small |= {key: least} if value > least else {}
    return small


def _as_yaml(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000)
        .partition("\n...")[0]
        .strip()
    )


def judge(code: int | None, error: str) -> tuple[str, str]:
    """Return the kind of a command's end, and the message that says why.

    Args:
        code: its exit code; None: it took too long.
        error: what it wrote to standard error.
    """
    lines = [line for line in error.splitlines() if line.startswith("gnnplace:")]
    message = " ".join(lines).strip()
    if code in (0, 3):
        return "planned", message
    if code is None:
        return "wrong", "no end in time"
    if (
        code != 2
        or len(lines) != 1
        or "Traceback" in error
        or RAW_WORDS.search(message)
    ):
        tail = [line for line in error.splitlines() if line.strip()][-3:]
        return "wrong", f"exit {code}: {message or ' | '.join(tail)}"
    return "refused", message


def plan_types(
    model_types: Iterable[str], seconds: float = SECONDS
) -> Iterator[Outcome]:
    """Plan each model type by the command, each in a fork of one process.

    Args:
        model_types: as transformers names them.
        seconds: that a command may take.
    """
    from tests.campaign.test_faults import Zygote

    with tempfile.TemporaryDirectory() as folder:
        zygote = Zygote(Path(folder))
        try:
            for model_type in model_types:
                model = small_model(model_type)
                options = ["--cluster", "nvlink-a100-4", "--budget", "0", "--quiet"]
                answer = zygote.ask(
                    arguments=["plan", model, *options], bound=seconds, memory=MEMORY
                )
                kind, message = judge(answer["code"], answer["error"])
                yield Outcome(
                    model_type, model, kind, message, round(answer["seconds"], 1)
                )
        finally:
            zygote.close()


def main() -> None:
    """Plan model types, write a line of JSON each and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("types", nargs="*")
    arguments = parser.parse_args()
    counts: dict[str, int] = {}
    with arguments.output.open("a") as file:
        for outcome in plan_types(arguments.types or TYPES, arguments.seconds):
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
    print(counts)


if __name__ == "__main__":
    main()
