"""The paper's question on our models: what hybrid training gains over data parallelism at scale.

Run from the root of the tree: ``python benchmarks/hybrid.py OUT.jsonl [PROFILES]``, where PROFILES
is a folder with PipeDream's profiles (inception_v3.txt, gnmt.txt). Op times of the zoo's models are
estimated for the cluster's kind; nothing is allocated. One JSON line a model; those that are there
already are left out. The table of results is ``benchmarks/results/hybrid.md``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CLUSTER = "64xnvlink-v100-4"
MODELS = {
    "inception": "inception?batch=32&size=96&width=64&depth=6",
    "gnmt": "gnmt?batch=64&source=8&target=8&vocabulary=16000&width=512&layers=4",
    "big_lstm": "big_lstm?batch=128&length=20&vocabulary=793470&cells=8192&width=1024&samples=8192",
    # The rows of the embedding that a step of 128 texts of 20 words reads: its sparse gradient.
    "big_lstm, sparse": "big_lstm?batch=128&length=20&vocabulary=2560&cells=8192&width=1024"
    "&samples=8192",
    "rnn_lm": "rnn_lm?batch=64&length=10&vocabulary=16000&width=1024&layers=2",
}
# Examples a step of a profile: PipeDream's profiles do not say; assumed.
PROFILES = {"inception_v3": "64", "gnmt": "64"}


def hybrid(what: str, *more: str) -> dict[str, object]:
    arguments = [
        what,
        "--cluster",
        CLUSTER,
        "--goal",
        "epochs",
        "--json",
        "--budget",
        "15",
    ]
    command = [sys.executable, "-m", "gnnplace", "plan", *arguments, *more]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["training"]


def converted(profile: Path, folder: str) -> str:
    target = str(Path(folder) / f"{profile.stem}.json")
    command = [
        sys.executable,
        "-m",
        "gnnplace",
        "convert",
        str(profile),
        "--from",
        "pipedream",
    ]
    subprocess.run([*command, "-o", target], check=True, stdout=subprocess.DEVNULL)
    return target


def main(out: str, profiles: str | None = None) -> None:
    file = Path(out)
    text = file.read_text() if file.exists() else ""
    done = {json.loads(line)["key"] for line in text.splitlines()}
    with tempfile.TemporaryDirectory() as folder:
        jobs: dict[str, tuple[str, tuple[str, str]]] = {
            f"zoo {name}": (spec, ("--optimizer", "sgd"))
            for name, spec in MODELS.items()
        }
        if profiles is not None:
            for name, batch in PROFILES.items():
                problem = converted(Path(profiles) / f"{name}.txt", folder)
                jobs[f"profile {name}"] = (problem, ("--batch", batch))
        for key, (what, more) in jobs.items():
            if key not in done:
                answer = hybrid(what, *more) | {
                    "key": key,
                    "model": MODELS.get(key[4:], key),
                }
                with file.open("a") as lines:
                    lines.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
