"""Compilation of kernels: ``kernel`` for what Python calls, ``inner`` for what kernels call.

Both are numba's ``njit`` with a cache on disk, without checks of bounds, and with NumPy's division
(by zero: inf or nan). All that numba compiles by itself takes twice as long; what it leaves out:

* ``kernel``: the wrapper for C, which nobody calls;
* ``inner``: also the wrapper for Python, a page of unpacking for a function that takes a problem's
  arrays. Called from Python all the same (by a test, say), an inner kernel is called through a
  kernel made then. Its module is optimised by inlining and counts of references alone, and no
  machine code is made of it: the kernels above it have it compiled into them, and optimise it
  there. Its cache on disk holds LLVM's bitcode;
* functions that are only declared in a module get no passes of their own;
* passes over what kernels do not have: closures, ``with``, literals to unroll, expressions of whole
  arrays (``UNUSED_PASSES``);
* a function for every kind of new array: ``empty`` is written into the kernel that asks for it;
* loops are not unrolled, which would make a fifth more code to no avail.

Everything that an inner kernel calls is compiled into it, optimised once more in each kernel above
it: few levels are quick to compile. So is what has one signature: flags are part of it too. With
``NUMBA_DISABLE_JIT=1`` all of them stay Python: slow, but at once.

The classes take the place of numba's where its compiler lets one choose (``pipeline_class``,
``library``, ``_impl_class``); ``tests/graph/test_jit.py`` lists all that they rely on.

``ahead`` asks memory for an entry that a kernel will read soon, and does not wait for it. A loop
over a million ops that reads what its ops' neighbours left all over memory waits for each of them,
a hundred nanoseconds, since it knows what to read next only when it has read the one before. Asked
for a few ops ahead they are there in time. No result depends on it: it is the processor's prefetch
instruction, and nothing at all where kernels stay Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import config, njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags, compile_result
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NopythonRewrites
from numba.core.untyped_passes import (
    FindLiterallyCalls,
    InlineClosureLikes,
    LiteralPropagationSubPipelinePass,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    RewriteDynamicRaises,
    WithLifting,
)
from numba.extending import intrinsic
from numba.np import arrayobj, linalg


def _import_array_functions() -> None:
    """Import numba's array functions without scipy, which takes a tenth of a second.

    Numba imports them when a first kernel is loaded, and they import scipy's BLAS to learn whether
    there is any. There is: scipy is a dependency of ours. ``np.dot`` in a kernel finds it itself.
    """
    check = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = check


_import_array_functions()
PACKAGE = Path(__file__).resolve().parent.parent
ROOMS = ("graph", "simulation", "placers", "policy")  # lowest first
WRAPPER = "_ZN7cpython"
UNUSED_PASSES = (
    FindLiterallyCalls,
    InlineClosureLikes,
    LiteralPropagationSubPipelinePass,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    NopythonRewrites,
    RewriteDynamicRaises,
    WithLifting,
)
LINKED = llvm.Linkage.linkonce_odr


@cache
def kernels_stamp(room: str) -> str:
    """Return a digest of all files with kernels, or their constants, of a room and those below."""
    digest = sha256()
    for below in ROOMS[: ROOMS.index(room) + 1]:
        for path in sorted((PACKAGE / below).rglob("*.py")):
            text = path.read_bytes()
            if b"numba" in text or b"graph.jit" in text:
                digest.update(
                    path.relative_to(PACKAGE).as_posix().encode() + b"\0" + text
                )
    return digest.hexdigest()


class QuickFlags(Flags):  # type: ignore[misc]
    """Flags of a compilation that compare quickly: numba compares them 100,000 times."""

    __slots__ = ()

    def __hash__(self) -> int:
        """Return the same hash for all flags."""
        return HASH

    def __eq__(self, other: object) -> bool:
        """Return whether all values are equal; what neither has set is its default in both."""
        if not isinstance(other, Flags):
            return False
        values = self._values
        other_values = other._values
        return values == other_values or all(
            getattr(self, name) == getattr(other, name)
            for name in values.keys() | other_values.keys()
        )


HASH = hash(Flags())


class KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The compiled code of a kernel."""

    def _optimize_functions(self, ll_module: llvm.ModuleRef) -> None:
        """Run the function passes over the functions that have a body."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        """Drop the Python wrappers of kernels that were linked in, because nobody calls them."""
        for function in self._final_module.functions:
            if function.name.startswith(WRAPPER) and function.linkage == LINKED:
                function.linkage = llvm.Linkage.internal
        builder = self._codegen._pass_builder(opt=0)
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(self._final_module, builder)
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)
        self._run_all_passes()

    def _run_all_passes(self) -> None:
        """Run LLVM's own pipeline without unrolling, which doubles the code and is no quicker."""
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._codegen._tm, options)
        passes = builder.getModulePassManager()
        passes.add_refprune_pass()
        passes.run(self._final_module, builder)


class _NoEnvironment:
    """A stand-in for a code generator whose functions have no address to set an environment at."""

    def set_env(self, name: str, environment: object) -> None:
        """Do nothing, because the environment is for calls from Python."""


class InnerLibrary(KernelLibrary):
    """Code that is only ever linked into the code of kernels."""

    codegen = _NoEnvironment()

    def _optimize_final_module(self) -> None:
        """Inline functions and drop reference counts that cancel out."""
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        """Make no machine code."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, because there is no machine code."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return the bitcode, for there is no object code."""
        self._ensure_finalized()
        return (self.name, "bitcode", self._get_module_for_linking().as_bitcode())


class KernelCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler with a library class of this package."""

    library: type[KernelLibrary] = KernelLibrary

    def __init__(self, *args: object) -> None:
        typing, target, library, kinds, result, flags, local = args
        super().__init__(
            typing, target, library, kinds, result, QuickFlags(flags), local
        )

    def define_pipelines(self) -> object:
        """Return numba's passes but the unused; they compile into a library of this package."""
        name = self.state.func_id.func_qualname
        self.state.library = self.library(self.state.targetctx.codegen(), name)
        self.state.library.enable_object_caching()
        pipelines: Any = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                step for step in pipeline.passes if step[0] not in UNUSED_PASSES
            ]
        return pipelines


class InnerCompiler(KernelCompiler):
    """The compiler of inner kernels."""

    library = InnerLibrary


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache on disk of a kernel; files that cannot be read count as none.

    Numba keeps code until the kernel's own file changes. Kernels of other files are compiled into
    it, and installing a wheel may give a new file an old time: the stamp here is of contents.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        room = Path(function.__code__.co_filename).parent
        if room.is_relative_to(PACKAGE):
            parts = room.relative_to(PACKAGE).parts
        else:
            parts = ()
        if parts and parts[0] in ROOMS:
            self._cache_file._source_stamp = kernels_stamp(parts[0])

    def load_overload(self, kinds: object, target_context: object) -> object:
        """Load a kernel from the cache as numba does, or None if its file cannot be read.

        Numba would raise where a type has moved to another module since; here the cache is flushed.
        """
        try:
            return super().load_overload(kinds, target_context)
        except Exception:
            self.flush()
            return None


class InnerFiles(CompileResultCacheImpl):  # type: ignore[misc]
    """The reader of an inner kernel from disk."""

    def rebuild(self, target_context: Any, payload: Any) -> object:
        """Rebuild a compiled function as numba does, from bitcode instead of machine code."""
        (
            (name, _, bitcode),
            fndesc,
            env,
            signature,
            objectmode,
            lifted,
            annotation,
            init,
            envs,
        ) = payload
        for run in init:
            run()
        library = InnerLibrary(target_context.codegen(), name)
        library._final_module = llvm.parse_bitcode(bitcode)
        library._finalize_final_module()
        return compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=env,
            entry_point=target_context.get_executable(library, fndesc, env),
            fndesc=fndesc,
            type_annotation=annotation,
            signature=signature,
            objectmode=objectmode,
            lifted=lifted,
            reload_init=init,
            referenced_envs=envs,
        )


class InnerCache(KernelCache):
    """The cache on disk of an inner kernel."""

    _impl_class = InnerFiles

    def _index_key(self, kinds: object, codegen: object) -> object:
        """Return another key than a kernel's of the same function, because bitcode does not run."""
        return (*super()._index_key(kinds, codegen), "bitcode")


Function = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=Function)
FLAGS: dict[str, Any] = {
    "boundscheck": False,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
KERNELS: list[Any] = []  # all that are imported


class InnerKernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel without a wrapper for Python; a call from Python makes one."""

    def __call__(self, *args: object) -> Any:
        """Call the function through a kernel compiled for it.

        One that is always inlined is called as Python.
        """
        if self.targetoptions.get("inline") == "always":
            return self.py_func(*args)
        return _through_kernel(self)(*args)

    def get_call_template(self, args: tuple[Any, ...], kws: dict[str, Any]) -> object:
        """Return the call template for kernels, with argument types widened.

        The literal 0 is no type of its own, and short integers are long.
        """
        return super().get_call_template(tuple(map(_widen, args)), kws)


def _widen(kind: object) -> object:
    kind = types.unliteral(kind)
    if kind in (types.int8, types.int16, types.int32):
        return types.intp
    return kind


@cache
def _through_kernel(inner_kernel: InnerKernel) -> Any:
    @njit
    def call(*args: object) -> Any:
        return inner_kernel(*args)

    return call


def kernel(function: FunctionT) -> FunctionT:
    """Compile a function that Python calls."""
    if config.DISABLE_JIT:
        KERNELS.append(function)
        return function
    compiled: Any = njit(pipeline_class=KernelCompiler, **FLAGS)(function)
    compiled._cache = KernelCache(function)
    KERNELS.append(compiled)
    return cast("FunctionT", compiled)


def inner(**flags: object) -> Callable[[FunctionT], FunctionT]:
    """Compile a function that kernels call.

    Args:
        flags: The flags of ``njit``, beside the usual ones.
    """

    def compiled(function: FunctionT) -> FunctionT:
        if config.DISABLE_JIT:
            return function
        options = {"nopython": True, "no_cpython_wrapper": True} | FLAGS | flags
        inner_kernel: Any = InnerKernel(
            function, targetoptions=options, pipeline_class=InnerCompiler
        )
        inner_kernel._cache = InnerCache(function)
        KERNELS.append(inner_kernel)
        return cast("FunctionT", inner_kernel)

    return compiled


def _code(context: Any, builder: Any, signature: Any, args: Any) -> object:
    """Emit a prefetch of the address of ``array[index]`` and return a dummy value."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    byte = ir.IntType(8).as_pointer()
    word = ir.IntType(32)
    stride = builder.extract_value(array.strides, 0)
    step = builder.mul(
        context.cast(builder, args[1], signature.args[1], types.intp), stride
    )
    address = builder.gep(builder.bitcast(array.data, byte), [step])
    kinds = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kinds)
    builder.call(prefetch, [address, word(0), word(3), word(1)])
    return context.get_dummy_value()


def _typed(typing: object, array: object, index: object) -> object:
    return types.void(array, index), _code


def _nothing(array: object, index: object) -> None:
    """Do nothing, because Python cannot express a prefetch."""


# Asks for the line of memory at which ``array[index]`` begins, an entry or a row; in a kernel.
ahead: Function = _nothing if config.DISABLE_JIT else intrinsic(_typed)


def _empty(shape: int | tuple[int, int], dtype: type, kind: object) -> object:
    """Return an array that is not set, because Python needs no kind."""
    return np.empty(shape, dtype)


# An array that is not set, of a shape, a dtype and numba's type of it; in a kernel. Numba would
# compile a function for each kind of shape and dtype that ``np.empty`` is called with.
empty: Function = _empty if config.DISABLE_JIT else arrayobj.numpy_empty_nd
