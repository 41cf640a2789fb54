"""How kernels are compiled: ``kernel`` for what Python calls, ``inner`` for what kernels call.

Both are numba's ``njit`` with a cache on disk, without checks of bounds, and with NumPy's division
(by zero: inf or nan). What they leave out makes compiling quicker, by a fifth all in all:

* ``kernel``: the wrapper for C, which nobody calls;
* ``inner``: also the wrapper for Python, a page of unpacking for a function that takes a problem's
  arrays. Called from Python all the same (by a test, say), an inner kernel is called through a
  kernel made then.

With ``NUMBA_DISABLE_JIT=1`` all of them stay Python: slow, but at once.

Everything that an inner kernel calls is compiled into it, optimised once more in each kernel above
it: few levels are quick to compile. So is what has one signature: flags are part of it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import config, njit, types
from numba.core.registry import CPUDispatcher

from gnnplace.graph.code import InnerCache, InnerCompiler, KernelCache, KernelCompiler

Function = Callable[..., Any]
FLAGS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}
KERNELS: list[Any] = []  # all that are imported


class InnerKernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel without a wrapper for Python; a call from Python makes one."""

    def __call__(self, *args: Any) -> Any:
        """Calls it through a kernel compiled for that; one that is always inlined as Python."""
        if self.targetoptions.get("inline") == "always":
            return self.py_func(*args)
        return _through_kernel(self)(*args)

    def get_call_template(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        """What kernels call it by: 0 is no type of its own, and short whole numbers are long."""
        return super().get_call_template(tuple(map(_widened, args)), kws)


def _widened(kind: Any) -> Any:
    kind = types.unliteral(kind)
    return types.intp if kind in (types.int8, types.int16, types.int32) else kind


@cache
def _through_kernel(inner_kernel: InnerKernel) -> Any:
    @njit
    def call(*args: Any) -> Any:
        return inner_kernel(*args)

    return call


def kernel(function: Function) -> Any:
    """Compiles a function that Python calls."""
    if config.DISABLE_JIT:
        KERNELS.append(function)
        return function
    made = njit(pipeline_class=KernelCompiler, **FLAGS)(function)
    made._cache = KernelCache(function)
    KERNELS.append(made)
    return made


def inner(**flags: Any) -> Callable[[Function], Any]:
    """Compiles a function that kernels call.

    Args:
        flags: the flags of ``njit``, beside the usual ones.
    """

    def compiled(function: Function) -> Any:
        if config.DISABLE_JIT:
            return function
        options = {"nopython": True, "no_cpython_wrapper": True} | FLAGS | flags
        made = InnerKernel(function, targetoptions=options, pipeline_class=InnerCompiler)
        made._cache = InnerCache(function)
        KERNELS.append(made)
        return made

    return compiled
