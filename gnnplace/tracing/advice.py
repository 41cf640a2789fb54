"""What to write instead of code that cannot be captured, told from what failed and where.

A captured step is recorded on tensors without numbers. What asks for one (an `if`, `item()`), what
makes a tensor whose shape depends on them (a boolean mask, `nonzero`), or what leaves torch (NumPy,
a formatted print) has no recording. Which of these it is shows in the op that failed, in the line
of the user's code and in the module; each has its own way out.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

STEP = "a captured step is always the same"
SHAPES = {
    "nonzero": "give the positions as an input, or keep all entries and weight the others with 0",
    "unique": "make it before the model and give it as an input",
    "repeat_interleave": "give output_size=, or repeat before the model",
    "masked_select": "keep all entries: torch.where(mask, x, 0) or x.masked_fill(~mask, 0)",
    "bincount": "give minlength= to torch.zeros(n).index_add instead",
}
"""Ops whose result has a shape that depends on numbers, and what to do instead."""
MASK = re.compile(r"\[[^\]]*([<>]=?|[!=]=|~|mask|isnan|isfinite)[^\]]*\]")
READ = re.compile(r"\.item\(|\.tolist\(|\b(float|int|bool)\(|\.any\(\)|\.all\(\)")


def on_numbers(op: str, place: str, module: Any = None) -> str:
    """What is said of a step that depends on the numbers of a tensor.

    Args:
        op: The op that asked for them.
        place: The user's line, as "FILE:LINE" with or without " at " before it.
        module: The innermost module.
    """
    if getattr(module, "add_self_loops", False):
        return (
            f"the step depends on the numbers of a tensor: {type(module).__name__} looks for self "
            "loops among the edges; make it with add_self_loops=False, and add them to edge_index "
            "before the model (torch_geometric.utils.add_self_loops)"
        )
    what, instead = _of_numbers(op, source_line(place))
    return f"the step depends on the numbers of a tensor{what}, and {STEP}; {instead}"


def _of_numbers(op: str, line: str) -> tuple[str, str]:
    """What of a line does it, and what to write instead."""
    shape = next((name for name in SHAPES if name in op or f"{name}(" in line), "")
    if ("nonzero" in op or "index" in op) and MASK.search(line):
        return " (a boolean mask keeps some of its entries)", (
            "keep all: torch.where(mask, x, 0) or x.masked_fill(~mask, 0), and divide by mask.sum()"
        )
    if shape:
        return f" (the shape of what {shape} makes)", SHAPES[shape]
    if line.startswith(("while ", "for ")):
        return " (how often a loop runs)", "loop a fixed number of times, and use torch.where in it"
    if line.startswith("assert "):
        return " (an assertion)", "check it outside of the model"
    if line.startswith(("if ", "elif ")) or " if " in line:
        return " (an `if`)", (
            "compute both branches and choose with torch.where(condition, a, b), or decide before "
            "capture"
        )
    if READ.search(line):
        return " (it becomes a number of Python)", (
            "leave it a tensor: y * y.max() needs no item(); detach() it if it needs no gradient"
        )
    return " (as an `if`, `item()` or a boolean index does)", "use torch.where"


def on_error(text: str, place: str) -> str:
    """What to try after another error; empty if nothing is known."""
    line = source_line(place)
    if "torch.cond(" in line:
        return (
            "torch.cond cannot be captured: compute both branches and choose with "
            "torch.where(condition, a, b)"
        )
    if ".numpy()" in text or "numpy" in line:
        return "NumPy cannot be recorded: use torch's function of that name"
    if "format string" in text or "__format__" in text:
        return "a print of numbers cannot be recorded: take it out of the forward pass"
    if "same device" in text or "not compiled with CUDA" in text or "cuda devices" in text:
        return "leave devices to the tensors, as in torch.zeros(8, device=x.device)"
    return ""


def source_line(place: str) -> str:
    """The line of code at "FILE:LINE", stripped; empty where it cannot be read."""
    path, _, number = place.rpartition(" at ")[2].rpartition(":")
    return linecache.getline(path, int(number)).strip() if number.isdecimal() else ""
