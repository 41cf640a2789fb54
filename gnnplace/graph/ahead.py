"""``ahead``: asks memory for an entry that a kernel will read soon, and does not wait for it.

A loop over a million ops that reads what its ops' neighbours left all over memory waits for each of
them, a hundred nanoseconds, since it knows what to read next only when it has read the one before.
Asked for a few ops ahead they are there in time. No result depends on it: it is the processor's
prefetch instruction (``llvm.prefetch``), and nothing at all where kernels stay Python.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from gnnplace.graph.jit import Function


def _code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The instruction for the address of ``array[index]``."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    stride = builder.extract_value(array.strides, 0)
    step = builder.mul(context.cast(builder, args[1], signature.args[1], types.intp), stride)
    address = builder.gep(builder.bitcast(array.data, byte), [step])
    kinds = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kinds)
    builder.call(prefetch, [address, word(0), word(3), word(1)])
    return context.get_dummy_value()


def _typed(typing: Any, array: Any, index: Any) -> Any:
    return types.void(array, index), _code


def _nothing(array: Any, index: Any) -> None:
    """What Python does: it has no way to say it."""


# Asks for the line of memory at which ``array[index]`` begins, an entry or a row; in a kernel.
ahead: Function = _nothing if config.DISABLE_JIT else intrinsic(_typed)
