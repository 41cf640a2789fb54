from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba import njit
from numba.core import caching, codegen, compiler, registry
from numba.np import arrayobj, linalg

from gnnplace.graph import jit, zero_flag_table
from gnnplace.graph.jit import KERNELS, ahead, inner, kernel


@inner()
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2.0


@kernel
def twice_doubled(values):
    doubled(values)
    doubled(values)
    return values[0] / values[1]


def test_an_inner_kernel_is_called_by_a_kernel_and_from_python():
    values = np.array([1.0, 2.0])
    assert twice_doubled(values) == 0.5
    assert values.tolist() == [4.0, 8.0]
    doubled(values)
    assert values.tolist() == [8.0, 16.0]


def test_division_by_zero_is_numpys():
    assert twice_doubled(np.array([1.0, 0.0])) == np.inf


# What jit.py takes the place of, calls or reads in numba, with its parameters.
NUMBA = {
    codegen.JITCodeLibrary: """
        _optimize_functions(self, ll_module)
        _optimize_final_module(self)
        _finalize_final_module(self)
        _finalize_dynamic_globals(self)
        _ensure_finalized(self)
        _get_module_for_linking(self)
        get_pointer_to_function(self, name)
        serialize_using_object_code(self)
        enable_object_caching(self)""",
    codegen.CPUCodegen: """
        _function_pass_manager(self, **kwargs)
        _module_pass_manager(self, **kwargs)
        _pass_builder(self, **kwargs)""",
    compiler.Compiler: """
        __init__(self, typingctx, targetctx, library, args, return_type, flags, locals)
        define_pipelines(self)""",
    compiler.CompileResult: """
        _rebuild(target_context, libdata, fndesc, env, signature, objectmode, lifted, typeann,
            reload_init, referenced_envs)""",
    caching.FunctionCache: """
        __init__(self, py_func)
        load_overload(self, sig, target_context)
        _index_key(self, sig, codegen)""",
    caching.CompileResultCacheImpl: """
        rebuild(self, target_context, payload)""",
    registry.CPUDispatcher: """
        get_call_template(self, args, kws)""",
}


def test_numba_has_not_moved():
    """Where this fails after an upgrade ``graph/jit.py`` must follow; the lines say what is new."""
    moved = []
    for owner, text in NUMBA.items():
        for was in re.findall(r"\w+\([^)]*\)", " ".join(text.split())):
            member = getattr(owner, was.partition("(")[0], None)
            now = (
                "gone"
                if member is None
                else f"{member.__name__}{inspect.signature(member)}"
            )
            moved += [f"{owner.__name__}.{was} is now {now}"] if now != was else []
    moved += (
        [] if callable(linalg.ensure_blas) else ["numba.np.linalg.ensure_blas is gone"]
    )
    moved += (
        []
        if callable(arrayobj.numpy_empty_nd)
        else ["numba.np.arrayobj.numpy_empty_nd is gone"]
    )
    moved += [] if hasattr(compiler.Flags(), "_values") else ["Flags._values is gone"]
    files = doubled._cache._cache_file
    moved += (
        []
        if hasattr(files, "_source_stamp")
        else ["IndexDataCacheFile._source_stamp is gone"]
    )
    assert not moved, f"numba {numba.__version__} has moved:\n" + "\n".join(moved)


@kernel
def new_flags(rows):
    return zero_flag_table(rows, 3)


def test_new_arrays_are_what_numpy_would_make():
    made = new_flags(2)
    assert made.shape == (2, 3)
    assert made.dtype == np.bool_
    assert made.flags.c_contiguous
    assert not made.any()


def test_kernels_run_no_pass_for_what_they_do_not_have():
    state = SimpleNamespace(flags=compiler.Flags(), func_ir=None)
    every = compiler.DefaultPassBuilder.define_nopython_pipeline(state).passes
    assert set(jit.UNUSED_PASSES) < {step for step, _ in every}


def test_kernels_are_listed():
    assert doubled in KERNELS
    assert twice_doubled in KERNELS


def test_without_the_compiler_all_of_it_is_python():
    code = """if True:
        from gnnplace.graph import jit, kernels
        print(type(kernels.order_producers_first).__name__, jit.ahead([1], 0))"""
    off = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=off,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["function", "None"]


SOURCE = """
import numpy as np
from gnnplace.graph.jit import inner, kernel

@inner()
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2.0

@kernel
def once(values):
    doubled(values)
    return values[0]

@kernel
def twice(values):
    doubled(values)
    doubled(values)
    return values[0]

if __name__ == "__main__":
    import sys
    for name in sys.argv[1:]:
        made = globals()[name]
        found = made(np.ones(1))
        print(found, "read" if made.stats.cache_hits else "compiled", len(doubled.signatures))
"""


@pytest.fixture
def run(tmp_path):
    """Runs kernels by name in a process of its own; result, where from, overloads of the inner."""
    (tmp_path / "made.py").write_text(SOURCE)

    def run(*names):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(tmp_path / "made.py"), *names]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    return run


def test_kernels_are_read_from_disk_or_made_anew_where_that_cannot_be(run, tmp_path):
    """One way through, for every process that compiles takes a second."""
    assert run("once") == ["2.0 compiled 1"]
    # With the inner one from disk.
    assert run("once", "twice") == ["2.0 read 0", "4.0 compiled 1"]
    for path in (tmp_path / "cache").rglob("*.nb?"):
        spoilt = path.read_bytes().replace(b"numba.core.types", b"numba.gone.types")
        path.write_bytes(spoilt)
    assert run("once") == ["2.0 compiled 1"]
    assert run("once") == ["2.0 read 0"]


def test_constants_and_short_numbers_are_no_types_of_their_own():
    @inner()
    def next_one(value):
        return value + 1

    @kernel
    def sums(values):
        return next_one(0) + next_one(7) + next_one(len(values)) + next_one(values[0])

    assert sums(np.array([4], np.int32)) == 1 + 8 + 2 + 5
    assert len(next_one.signatures) == 1


def test_kernels_of_a_room_are_made_anew_when_files_below_change(tmp_path, monkeypatch):
    for room in ("graph", "simulation"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "kernels.py").write_text("from numba import njit\n")
    (tmp_path / "graph" / "names.py").write_text("ORDER = 1\n")
    monkeypatch.setattr(jit, "PACKAGE", tmp_path)

    def stamps():
        jit.kernels_stamp.cache_clear()
        return jit.kernels_stamp("graph"), jit.kernels_stamp("simulation")

    try:
        first = stamps()
        (tmp_path / "graph" / "names.py").write_text("ORDER = 2\n")
        assert stamps() == first
        (tmp_path / "simulation" / "kernels.py").write_text("from numba import jit\n")
        second = stamps()
        assert second[0] == first[0]
        assert second[1] != first[1]
        (tmp_path / "graph" / "kernels.py").write_text("from numba import jit\n")
        assert stamps()[0] != second[0]
        assert stamps()[1] != second[1]
    finally:
        jit.kernels_stamp.cache_clear()


def test_kernels_of_the_package_are_stamped_by_contents():
    made = next(
        each
        for each in KERNELS
        if each.py_func.__module__.startswith("gnnplace.graph.")
    )
    assert made._cache._cache_file._source_stamp == jit.kernels_stamp("graph")


@kernel
def summed(row, table, order):
    """Sums entries as they are listed, each asked for one before."""
    total = 0.0
    for k in range(len(order)):
        if k + 1 < len(order):
            ahead(row, order[k + 1])
            ahead(table, order[k + 1])
        total += row[order[k]] + table[order[k], 1]
    return total


def test_what_is_asked_for_changes_nothing():
    row, table = np.arange(5.0), np.arange(10.0).reshape(5, 2)
    order = np.array([3, 0, 4], np.int32)
    assert summed(row, table, order) == 7.0 + 7.0 + 1.0 + 9.0
    assert row.tolist() == list(range(5))


def test_the_instruction_is_made():
    made = njit(summed.py_func)  # not from the cache, which has no text
    made(np.zeros(2), np.zeros((2, 2)), np.zeros(1, np.int32))
    assert "llvm.prefetch" in next(iter(made.inspect_llvm().values()))
