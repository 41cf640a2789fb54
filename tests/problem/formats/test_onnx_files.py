"""The files that the `onnx` package tests itself with, against a reading by `onnx` itself.

Every model is read, or refused in one line; edges, bytes and state are those that `onnx.load`,
`onnx.shape_inference` and a walk over the nodes give.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
import warnings
from collections import defaultdict
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gnnplace.errors import FormatError
from gnnplace.problem.formats import convert

NODE_TESTS = "onnx.backend.test.case.node"
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
PREPARING = (
    *(
        "Identity",
        "Transpose",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Cast",
        "CastLike",
    ),
    *(
        "Concat",
        "ConstantOfShape",
        "DequantizeLinear",
        "Expand",
        "QuantizeLinear",
        "Slice",
    ),
)
SAMPLE_OF_FILES, SAMPLE_OF_MODULES, SEED = 20, 8, 59


def bits(kind):
    if kind == TensorProto.STRING:
        return 64
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    for info in (ml_dtypes.finfo, ml_dtypes.iinfo):
        try:
            return info(dtype).bits * (2 if dtype.kind == "c" else 1)
        except (ValueError, TypeError):
            continue
    return 8 * dtype.itemsize


def size(kind, shape):
    return -(-int(np.prod(shape, dtype=np.int64)) * bits(kind) // 8)


def size_of_tensor(tensor):
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return size(tensor.data_type, tensor.dims)


def size_of_constant(node):
    (attribute,) = node.attribute
    if attribute.name == "value":
        return size_of_tensor(attribute.t)
    if attribute.name == "sparse_value":
        sparse = attribute.sparse_tensor
        return size_of_tensor(sparse.values) + size_of_tensor(sparse.indices)
    value = helper.get_attribute_value(attribute)
    values = value if isinstance(value, list) else [value]
    return sum({int: 8, float: 4}.get(type(one)) or len(one) for one in values)


def subgraphs(node):
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else []
        yield from attribute.graphs


def make_weights(graph):
    return {one.name: one for one in graph.initializer} | {
        one.values.name: one for one in graph.sparse_initializer
    }


def captured(graph):
    """Names that a subgraph reads and does not define."""
    defined = {one.name for one in graph.input} | make_weights(graph).keys()
    names = set()
    for node in graph.node:
        inner = set().union(*map(captured, subgraphs(node)))
        names |= ({*node.input} | inner) - defined - {""}
        defined |= {*node.output}
    return names | ({one.name for one in graph.output} - defined)


def reads(node):
    return ({*node.input} - {""}).union(*map(captured, subgraphs(node)))


def state_of(graph):
    """Bytes of constants that are read, in all subgraphs."""
    read = set().union(*(reads(node) for node in graph.node)) | {
        one.name for one in graph.output
    }
    total = 0
    for name, weight in make_weights(graph).items():
        if name in read and isinstance(weight, TensorProto):
            total += size_of_tensor(weight)
        elif name in read:
            total += size_of_tensor(weight.values) + size_of_tensor(weight.indices)
    for node in graph.node:
        total += size_of_constant(node) if node.op_type == "Constant" else 0
        total += sum(map(state_of, subgraphs(node)))
    return total


def expected_reading(graph):
    """Numbers of the nodes that are ops, and tensors by producer: (bytes or None, consumers)."""
    leaving = {one.name for one in graph.output}
    read = set().union(*(reads(node) for node in graph.node))
    constants, ops = {*make_weights(graph)}, []
    for number, node in enumerate(graph.node):
        inputs = [name for name in node.input if name]
        is_prepared = (
            node.op_type in PREPARING and inputs and constants.issuperset(inputs)
        )
        is_constant = node.op_type == "Constant" or is_prepared
        outputs = {name for name in node.output if name}
        if is_constant and not outputs & leaving and outputs & read:
            constants |= outputs
        else:
            ops.append(number)
    sizes = {}
    for info in (*graph.value_info, *graph.output):
        kind = info.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        tensor = kind.tensor_type
        is_known = kind.HasField("tensor_type") and tensor.HasField("shape")
        if is_known and all(one.HasField("dim_value") for one in tensor.shape.dim):
            sizes[info.name] = size(
                tensor.elem_type, [one.dim_value for one in tensor.shape.dim]
            )
    tensors = defaultdict(list)
    for number in ops:
        for name in filter(None, graph.node[number].output):
            consumers = [k for k in ops if name in reads(graph.node[k])]
            if consumers:
                tensors[number].append((sizes.get(name), tuple(consumers)))
    return ops, tensors


def check(name, data, folder):
    """Compare a model's problem with the reading by `onnx`; return the refusal, if it is one."""
    model = onnx.shape_inference.infer_shapes(
        onnx.load_from_string(data), data_prop=True
    )
    assert not model.functions
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = convert(path, "onnx")
    except FormatError as error:
        return str(error)
    ops, tensors = expected_reading(model.graph)
    labels = [int(one.split()[0]) for one in problem.graph.names]
    assert labels == ops, name
    actual = defaultdict(list)
    for t, producer in enumerate(problem.graph.producer.tolist()):
        consumers = tuple(
            sorted(labels[k] for k in problem.graph.consumers(t).tolist())
        )
        actual[labels[producer]].append((float(problem.graph.size[t]), consumers))
    assert actual.keys() == tensors.keys(), name
    for number, wanted in tensors.items():
        assert sorted(c for _, c in actual[number]) == sorted(c for _, c in wanted), (
            name
        )
        for size_in_file, consumers in wanted:
            assert (
                size_in_file is None or (size_in_file, consumers) in actual[number]
            ), name
    assert problem.state.sum() == state_of(model.graph), name
    assert all(np.isfinite(seconds).all() for seconds in problem.time.values()), name
    return None


def node_models(modules=None):
    """The models of the package's node tests: of all, or of some of its modules."""
    import onnx.backend.test.case.node as cases

    start = len(cases._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if modules is None:
            return [(one.name, one.model) for one in cases.collect_testcases()]
        for module in modules:
            importlib.import_module(f"{NODE_TESTS}.{module}")
    return [(one.name, one.model) for one in cases._NodeTestCases[start:]]


def data_files():
    return sorted([*DATA.glob("*/*/model.onnx"), *DATA.glob("light/*.onnx")])


def test_a_sample_of_public_models_is_read_as_onnx_reads_it(tmp_path):
    rng = random.Random(SEED)
    importlib.import_module(NODE_TESTS)
    names = sorted(
        m.name
        for m in pkgutil.iter_modules(importlib.import_module(NODE_TESTS).__path__)
    )
    models = node_models(rng.sample(names, SAMPLE_OF_MODULES))
    models = [(name, model.SerializeToString()) for name, model in models]
    models = rng.sample(models, min(len(models), 60))
    models += [
        (f.parent.name, f.read_bytes())
        for f in rng.sample(data_files(), SAMPLE_OF_FILES)
    ]
    reasons = {name: check(name, data, tmp_path) for name, data in models}
    refused = {name: reason for name, reason in reasons.items() if reason}
    assert "\n" not in "".join(refused.values())
    assert len(refused) < 0.1 * len(models), refused


@pytest.mark.campaign
def test_all_public_models_are_read_as_onnx_reads_them(tmp_path):
    """2,033 models of onnx 1.23; the refused have sequences, or sizes that data decide. 20 s."""
    models = [(name, model.SerializeToString()) for name, model in node_models()]
    models += [(str(file), file.read_bytes()) for file in data_files()]
    refused = dict[str, str]()
    for name, data in models:
        reason = check(name, data, tmp_path)
        if reason:
            refused[name] = reason
    assert len(refused) < 0.06 * len(models), refused
    reasons = (
        "is a sequence",
        "export the model with fixed sizes",
        "missing; write shapes",
    )
    unlike = {
        name: reason
        for name, reason in refused.items()
        if not any(r in reason for r in reasons)
    }
    assert not unlike
