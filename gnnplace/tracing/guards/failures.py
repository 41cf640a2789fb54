"""Finds the module and the line at which a capture failed, and advice on what to write instead.

A captured step is recorded on tensors without numbers. Code has no recording if it asks for a
number (an `if`, `item()`), makes a tensor whose shape depends on numbers (a boolean mask,
`nonzero`), or leaves torch (NumPy, a formatted print). The op that failed, the line of the user's
code and the module show which of these it is; each has its own way out.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

import torch
from torch import fx, nn
from torch.fx import proxy

from gnnplace.errors import GnnplaceError
from gnnplace.torch_names import refuses_generator, refuses_inference
from gnnplace.tracing.user_code import NOT_USERS, OUR_FILES

_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
UNKNOWN = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
)
"""Errors of tensors without numbers that were asked for one."""
LIBRARY = "/site-packages/transformers/"  # of a path: the checks there are no code of the user's
STEP = "a captured step is always the same"
SHAPES = {
    "nonzero": "give the positions as an input, or keep all entries and weight the others with 0",
    "unique": "make it before the model and give it as an input",
    "repeat_interleave": "give output_size=, or repeat before the model",
    "masked_select": "keep all entries: torch.where(mask, x, 0) or x.masked_fill(~mask, 0)",
    "bincount": "give minlength= to torch.zeros(n).index_add instead",
}
"""Ops whose result has a shape that depends on numbers, and what to do instead."""
COND = (
    "torch.cond cannot be captured: compute both branches and choose with "
    "torch.where(condition, a, b)"
)
INFERENCE = (
    "what is computed under torch.inference_mode() cannot be followed; write torch.no_grad(), "
    "which computes the same"
)
OWN_GENERATOR = (
    "a captured step has no objects such as a torch.Generator; leave generator= out, and seed by "
    "torch.manual_seed before the step"
)
MASK = re.compile(r"\[[^\]]*([<>]=?|[!=]=|~|mask|isnan|isfinite)[^\]]*\]")
READ = re.compile(r"\.item\(|\.tolist\(|\b(float|int|bool)\(|\.any\(\)|\.all\(\)")


def blame(error: BaseException, root: nn.Module) -> str:
    """Return one line that says what failed, in which module and at which line.

    Frames that hide themselves from tracebacks as pytest's do (`__tracebackhide__`) are left out.

    Args:
        error: The error that was raised while `root` was traced.
        root: A module that holds the model as its submodule `model`.
    """
    names = {
        id(m): n.removeprefix("model").lstrip(".") for n, m in root.named_modules()
    }
    module = ""
    inner = ""
    line = ""
    inside = False
    last: nn.Module | None = None
    for frame, number in _frames(error):
        if "__tracebackhide__" in frame.f_locals:
            continue
        node = frame.f_locals.get("n")  # of `fx.Interpreter.run_node`
        if isinstance(node, fx.Node):
            inner = node_place(node)
        owner = frame.f_locals.get("self")
        inside = inside or owner is root
        if isinstance(owner, nn.Module) and id(owner) in names and owner is not root:
            module = (
                f" in module {names[id(owner)] or 'model'!r} ({type(owner).__name__})"
            )
            last = owner
            inner = f" at {frame.f_code.co_filename}:{number}"
        path = frame.f_code.co_filename
        if inside and not path.startswith(NOT_USERS):
            line = f" at {path}:{number}"
    return f"capture failed{module}{line or inner}: {_first_line(error, line or inner, last)}"


def node_place(node: fx.Node) -> str:
    """Return module and line of a traced node, if they are known: ' in module X at FILE:LINE'."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if stack:
        path = str(list(stack.values())[-1][0]).removeprefix("model").lstrip(".")
    else:
        path = ""
    places = _PLACE.findall(node.meta.get("stack_trace") or "")
    user_places = [p for p in places if not p[0].startswith(OUR_FILES)] or places
    module = f" in module {path!r}" if path else ""
    return module + (
        f" at {user_places[-1][0]}:{user_places[-1][1]}" if user_places else ""
    )


@contextmanager
def loss_lines(function: object) -> Iterator[None]:
    """Have traced nodes tell the lines of a loss function, too, not of `forward`s alone."""
    anchors: set[tuple[str, str]] = getattr(proxy, "_STACK_TRACE_ANCHORS", set())
    code = getattr(function, "__code__", None)
    if code is None:
        added = set()
    else:
        added = {(code.co_filename, code.co_name)} - anchors
    anchors |= added
    try:
        yield
    finally:
        anchors -= added


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield frames of the error and of its causes, the outermost error first."""
    for current in _causes(error):
        trace: TracebackType | None = current.__traceback__
        while trace is not None:
            yield trace.tb_frame, trace.tb_lineno
            trace = trace.tb_next


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the outermost first."""
    visited: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _first_line(error: BaseException, place: str, module: nn.Module | None) -> str:
    """Return what failed, and what to write instead."""
    if type(error).__name__ in UNKNOWN:
        message = describe_number_dependence(
            str(error).partition("(")[0], place, module
        )
        is_branch = source_line(place).startswith("if ")
        return message + (
            _find_dropped_layers(module) if is_branch else _find_experts_hint(module)
        )
    if any(
        f.f_code.co_filename.endswith("_higher_order_ops/cond.py")
        for f, _ in _frames(error)
    ):
        return COND
    if any(refuses_inference(cause) for cause in _causes(error)):
        return INFERENCE
    if any(refuses_generator(cause) for cause in _causes(error)):
        return OWN_GENERATOR
    if "constant's list" in str(error):
        return (
            "a tensor is made inside the forward pass by what export cannot follow, such as "
            "torch.autograd.grad; a batch with that cannot be cut: --microbatches 1"
        )
    if "requires_grad flags" in str(error):
        return "requires_grad is changed within the step, which keeps it as it is: set it before"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else "no message"
    if LIBRARY in place and not isinstance(error, GnnplaceError):
        message = f"its class does not take these inputs ({message})"
    elif not isinstance(error, GnnplaceError):
        message = f"{type(error).__name__}: {message}"
    remedy = suggest_mend(str(error), place)
    if remedy:
        return f"{message}; {remedy}"
    return message


def _find_dropped_layers(module: nn.Module | None) -> str:
    """Return the rate by which a model of transformers leaves out layers, if it has one."""
    fields = getattr(getattr(module, "config", None), "__dict__", {})
    rates = [name for name, rate in fields.items() if "layerdrop" in name and rate]
    if rates:
        return f"; layers are left out by chance: configure {rates[0]}=0"
    return ""


def _find_experts_hint(module: nn.Module | None) -> str:
    """Return what the experts of a mixture can be written by, if a module looks like them."""
    if module is None or hasattr(module, "add_self_loops"):
        return ""
    stacked = [p.shape[0] for p in module.parameters(recurse=False) if p.dim() == 3]
    has_equal_children = any(
        isinstance(child, nn.ModuleList)
        and len(child) > 1
        and len({(type(m), *(p.shape for p in m.parameters())) for m in child}) == 1
        for child in module.children()
    )
    if not has_equal_children and (len(stacked) < 2 or len(set(stacked)) > 1):
        return ""
    return (
        "; experts of a mixture are one call that can be cut: gnnplace.experts(x, index, weights, "
        "up, down, act), with the matrices of all experts as parameters [E, I or 2 I, H], [E, H, I]"
    )


def describe_number_dependence(
    op: str, place: str, module: nn.Module | None = None
) -> str:
    """Return the error for a step that depends on the numbers of a tensor.

    Args:
        op: The op that asked for them.
        place: The user's line, as "FILE:LINE" with or without " at " before it.
        module: The innermost module that was running.
    """
    if getattr(module, "add_self_loops", False):
        return (
            f"the step depends on the numbers of a tensor: {type(module).__name__} looks for self "
            "loops among the edges; make it with add_self_loops=False, and add them to edge_index "
            "before the model (torch_geometric.utils.add_remaining_self_loops)"
        )
    description, remedy = _find_numbers_hint(op, source_line(place))
    return f"the step depends on the numbers of a tensor{description}, and {STEP}; {remedy}"


def _find_numbers_hint(op: str, line: str) -> tuple[str, str]:
    """Return what of a line asks for numbers, and what to write instead."""
    shape = next((name for name in SHAPES if name in op or f"{name}(" in line), "")
    if "ctc_loss" in op or "ctc_loss(" in line:
        return " (ctc_loss asks for its lengths)", (
            "call it as torch.nn.functional.ctc_loss"
        )
    if "gaussian_nll_loss(" in line:
        return (
            " (whether a variance is negative)",
            "call it as torch.nn.functional.gaussian_nll_loss",
        )
    if ("nonzero" in op or "index" in op) and MASK.search(line):
        return " (a boolean mask keeps some of its entries)", (
            "keep all: torch.where(mask, x, 0) or x.masked_fill(~mask, 0), and divide by mask.sum()"
        )
    if shape:
        return f" (the shape of what {shape} makes)", SHAPES[shape]
    if line.startswith(("while ", "for ")):
        return (
            " (how often a loop runs)",
            "loop a fixed number of times, and use torch.where in it",
        )
    if line.startswith("assert "):
        return " (an assertion)", (
            "compare it without int(), float() or tolist(), or check it outside of the model"
        )
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


def suggest_mend(text: str, place: str) -> str:
    """Return what to try after another error; empty if nothing is known."""
    line = source_line(place)
    if "torch.cond(" in line:
        return COND
    if ".numpy()" in text or "numpy" in line:
        return "NumPy cannot be recorded: use torch's function of that name"
    if "format string" in text or "__format__" in text:
        return "a print of numbers cannot be recorded: take it out of the forward pass"
    if (
        "same device" in text
        or "not compiled with CUDA" in text
        or "cuda devices" in text
    ):
        return "leave devices to the tensors, as in torch.zeros(8, device=x.device)"
    return ""


def source_line(place: str) -> str:
    """Return the line of code at "FILE:LINE", stripped; empty if it cannot be read."""
    path, _, number = place.rpartition(" at ")[2].rpartition(":")
    if number.isdecimal():
        return linecache.getline(path, int(number)).strip()
    return ""


def is_static(node: fx.Node) -> bool:
    """Return whether a node holds no tensor at all."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor | list | tuple)
