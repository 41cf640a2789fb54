"""Which module and which line a failed capture stumbled over."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import fx, nn
from torch.fx import proxy

from gnnplace.tracing.advice import on_error, on_numbers

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)
_UNKNOWN = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
)
"""Errors of tensors without numbers that were asked for one."""
_PYTHON = str(Path(inspect.__file__).parent)


def blame(error: BaseException, root: nn.Module) -> str:
    """One line that says what failed, in which module and at which line.

    Args:
        error: What was raised while `root` was traced.
        root: A module that holds the model as its submodule `model`.

    Frames that hide themselves from tracebacks as pytest's do (`__tracebackhide__`) are not told.
    """
    names = {id(m): n.removeprefix("model").lstrip(".") for n, m in root.named_modules()}
    module, inner, line, inside, last = "", "", "", False, None
    for frame, number in _frames(error):
        if "__tracebackhide__" in frame.f_locals:
            continue
        node = frame.f_locals.get("n")  # of `fx.Interpreter.run_node`
        if isinstance(node, fx.Node):
            inner = node_place(node)
        owner = frame.f_locals.get("self")
        inside = inside or owner is root
        if isinstance(owner, nn.Module) and id(owner) in names and owner is not root:
            module = f" in module {names[id(owner)] or 'model'!r} ({type(owner).__name__})"
            last = owner
            inner = f" at {frame.f_code.co_filename}:{number}"
        path = frame.f_code.co_filename
        if inside and not path.startswith((_TORCH, _OWN, "<")):
            line = f" at {path}:{number}"
    return f"capture failed{module}{line or inner}: {_first_line(error, line or inner, last)}"


def node_place(node: fx.Node) -> str:
    """Module and line of a traced node, as far as they are known: ' in module X at FILE:LINE'."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    path = str(list(stack.values())[-1][0]).removeprefix("model").lstrip(".") if stack else ""
    places = _PLACE.findall(node.meta.get("stack_trace") or "")
    own = [p for p in places if not p[0].startswith((_TORCH, _OWN))] or places
    module = f" in module {path!r}" if path else ""
    return module + (f" at {own[-1][0]}:{own[-1][1]}" if own else "")


@contextmanager
def loss_lines(function: Any) -> Iterator[None]:
    """Within it a traced node tells the lines of a loss function too, not of `forward`s alone."""
    anchors: set[tuple[str, str]] = getattr(proxy, "_STACK_TRACE_ANCHORS", set())
    code = getattr(function, "__code__", None)
    added = set() if code is None else {(code.co_filename, code.co_name)} - anchors
    anchors |= added
    try:
        yield
    finally:
        anchors -= added


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Frames of the error and of what caused it, the outermost error first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        trace: TracebackType | None = current.__traceback__
        while trace is not None:
            yield trace.tb_frame, trace.tb_lineno
            trace = trace.tb_next
        current = current.__cause__ or current.__context__


def _first_line(error: BaseException, place: str, module: nn.Module | None) -> str:
    if type(error).__name__ in _UNKNOWN:
        return on_numbers(str(error).partition("(")[0], place, module)
    if "constant's list" in str(error):
        return (
            "a tensor is made inside the forward pass by what export cannot follow, such as "
            "torch.autograd.grad; a batch with that cannot be cut: --microbatches 1"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    instead = on_error(str(error), place)
    return f"{told}; {instead}" if instead else told


def user_place() -> str:
    """Line of the innermost caller that is neither torch nor this package: ' at FILE:LINE'."""
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        library = path.startswith(_PYTHON) and "site-packages" not in path
        if not path.startswith((_TORCH, _OWN, "<")) and not library:
            return f" at {path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
