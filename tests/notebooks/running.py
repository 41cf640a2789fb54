"""Runs the notebooks of the docs in this process.

    python -m tests.notebooks.running docs/notebooks/*.ipynb

writes what their cells print into the files.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def executed(path: Path) -> dict[str, Any]:
    """A notebook with the outputs that its code cells have now."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    known: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            _run("".join(cell["source"]), f"{path.name}, cell {number}", known)
        text = printed.getvalue().splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": text}
        cell.update(execution_count=number, outputs=[stream] if text else [])
    return notebook


def _run(source: str, name: str, known: dict[str, Any]) -> None:
    """As a notebook does: what the last line is worth is shown."""
    tree = ast.parse(source, name)
    last = (
        tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    )
    exec(compile(tree, name, "exec"), known)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), known)
        if value is not None:
            print(repr(value))


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        text = json.dumps(executed(given), indent=1, ensure_ascii=False)
        given.write_text(text + "\n", encoding="utf-8")
