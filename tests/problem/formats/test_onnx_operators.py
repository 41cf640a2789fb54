"""Operators, subgraphs, functions and weights against counts by hand; a multiply-add is two."""

from __future__ import annotations

import warnings
from math import log2

import onnx
import pytest
from onnx import TensorProto, helper

from gnnplace.errors import ChangedWarning, FormatError
from gnnplace.problem.cluster.gpus import GPUS
from gnnplace.problem.formats import convert

MICROSOFT = "com.microsoft"
RATE = GPUS["v100"].rates["float32"]
CACHE = [2, 8, 512, 64]


def graph_of(nodes, inputs, outputs, **parts):
    def values(sizes):
        return [
            helper.make_tensor_value_info(name, 1, size) for name, size in sizes.items()
        ]

    return helper.make_graph(nodes, "g", values(inputs), values(outputs), **parts)


def read(tmp_path, graph, functions=()):
    """The problem of a graph, and the lines that were given with it."""
    model = helper.make_model(graph, functions=functions)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", ChangedWarning)
        problem = convert(path, "onnx")
    return problem, [
        str(note.message) for note in notes if note.category is ChangedWarning
    ]


def case(kind, inputs, outputs, flops, domain="", **attributes):
    return pytest.param(
        kind, domain, inputs, outputs, attributes, flops, id=f"{domain}:{kind}"
    )


CASES = [
    case(
        "MatMul",
        [[4, 256, 512], [512, 1024]],
        [[4, 256, 1024]],
        2 * 4 * 256 * 512 * 1024,
    ),
    case(
        "MatMulInteger", [[256, 512], [512, 4096]], [[256, 4096]], 2 * 256 * 512 * 4096
    ),
    case(
        "QLinearMatMul",
        [[512, 512], [], [], [512, 4096], [], [], [], []],
        [[512, 4096]],
        2 * 512 * 512 * 4096,
    ),
    case(
        "Gemm",
        [[512, 256], [4096, 512]],
        [[256, 4096]],
        2 * 256 * 512 * 4096,
        transA=1,
        transB=1,
    ),
    case(
        "FusedMatMul",
        [[8, 512, 256], [8, 512, 512]],
        [[8, 256, 512]],
        2 * 8 * 256 * 512 * 512,
        MICROSOFT,
        transA=1,
    ),
    case(
        "MatMulNBits",
        [[512, 1024], [4096, 32, 16], [131072]],
        [[512, 4096]],
        2 * 512 * 1024 * 4096,
        MICROSOFT,
        K=1024,
        N=4096,
        bits=4,
        block_size=32,
    ),
    case(
        "Einsum",
        [[8, 16, 256, 64], [8, 16, 512, 64]],
        [[8, 16, 256, 512]],
        2 * 8 * 16 * 256 * 512 * 64,
        equation="bhqd,bhkd->bhqk",
    ),
    case(
        "Einsum",
        [[256, 512], [512, 1024], [1024, 256]],
        [[256, 256]],
        2 * 256 * 1024 * (512 + 256),
        equation="ij,jk,kl->il",
    ),
    case(
        "Einsum",
        [[8, 4, 256, 512], [4, 512, 256]],
        [[8, 4, 256, 256]],
        2 * 8 * 4 * 256 * 256 * 512,
        equation="...ij,...jk->...ik",
    ),
    case(
        "Conv",
        [[8, 64, 58, 58], [128, 16, 3, 3]],
        [[8, 128, 54, 54]],
        2 * 8 * 128 * 54 * 54 * 16 * 9,
        group=4,
        dilations=[2, 2],
    ),
    case(
        "ConvInteger",
        [[8, 64, 56, 56], [128, 64, 3, 3]],
        [[8, 128, 54, 54]],
        2 * 8 * 128 * 54 * 54 * 64 * 9,
    ),
    case(
        "QLinearConv",
        [[8, 64, 56, 56], [], [], [128, 64, 3, 3], [], [], [], []],
        [[8, 128, 54, 54]],
        2 * 8 * 128 * 54 * 54 * 64 * 9,
    ),
    case(
        "ConvTranspose",
        [[8, 128, 28, 28], [128, 64, 4, 4]],
        [[8, 64, 56, 56]],
        2 * 8 * 128 * 28 * 28 * 64 * 16,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    ),
    case(
        "DeformConv",
        [[8, 64, 56, 56], [256, 64, 3, 3], [8, 18, 54, 54]],
        [[8, 256, 54, 54]],
        2 * 8 * 256 * 54 * 54 * 64 * 9,
    ),
    case(
        "LSTM",
        [[64, 32, 256], [2, 2048, 256], [2, 2048, 512]],
        [[64, 2, 32, 512]],
        2 * 64 * 32 * 2 * 2048 * (256 + 512),
        direction="bidirectional",
        hidden_size=512,
    ),
    case(
        "GRU",
        [[64, 32, 256], [1, 1536, 256], [1, 1536, 512]],
        [[64, 1, 32, 512]],
        2 * 64 * 32 * 1536 * (256 + 512),
        hidden_size=512,
    ),
    case(
        "RNN",
        [[32, 64, 512], [1, 1024, 512], [1, 1024, 1024]],
        [[32, 64, 1, 1024]],
        2 * 64 * 32 * 1024 * (512 + 1024),
        hidden_size=1024,
        layout=1,
    ),
    case(
        "Attention",
        [[2, 32, 512, 64], CACHE, CACHE],
        [[2, 32, 512, 64]],
        4 * 2 * 32 * 512 * 512 * 64,
    ),
    case(
        "Attention",
        [[2, 512, 2048], [2, 512, 512], [2, 512, 512], None, CACHE, CACHE],
        [[2, 512, 2048]],
        4 * 2 * 32 * 512 * 1024 * 64,
        q_num_heads=32,
        kv_num_heads=8,
        is_causal=1,
    ),
    case(
        "LinearAttention",
        [[8, 1024, 2048], [8, 1024, 2048], [8, 1024, 2048]],
        [[8, 1024, 2048]],
        4 * 8 * 1024 * 16 * 128 * 128,
        q_num_heads=16,
        kv_num_heads=16,
        update_rule="linear",
    ),
    case(
        "Attention",
        [[2, 512, 768], [768, 2304], [2304]],
        [[2, 512, 768]],
        2 * 2 * 512 * 768 * 2304 + 4 * 2 * 12 * 512 * 512 * 64,
        MICROSOFT,
        num_heads=12,
    ),
    case(
        "MultiHeadAttention",
        [[2, 512, 1024], [2, 1024, 1024], [2, 1024, 1024]],
        [[2, 512, 1024]],
        4 * 2 * 16 * 512 * 1024 * 64,
        MICROSOFT,
        num_heads=16,
    ),
    case(
        "GroupQueryAttention",
        [[2, 512, 2048], [2, 512, 512], [2, 512, 512], CACHE, CACHE, [2], []],
        [[2, 512, 2048], [2, 8, 1024, 64], [2, 8, 1024, 64]],
        4 * 2 * 32 * 512 * 1024 * 64,
        MICROSOFT,
        num_heads=32,
        kv_num_heads=8,
    ),
    case(
        "GroupQueryAttention",
        [[2, 512, 3072], None, None, None, None, [2], []],
        [[2, 512, 2048], CACHE, CACHE],
        4 * 2 * 32 * 512 * 512 * 64,
        MICROSOFT,
        num_heads=32,
        kv_num_heads=8,
    ),
    case(
        "MoE",
        [[512, 1024], [512, 8], [8, 4096, 1024], None, [8, 1024, 4096]],
        [[512, 1024]],
        2 * 512 * 2 * 2 * 1024 * 4096,
        MICROSOFT,
        k=2,
    ),
]


@pytest.mark.parametrize(
    ("kind", "domain", "inputs", "outputs", "attributes", "flops"), CASES
)
def test_heavy_operators_are_within_a_tenth_of_a_count_by_hand(
    tmp_path, kind, domain, inputs, outputs, attributes, flops
):
    reads = [f"i{k}" if shape is not None else "" for k, shape in enumerate(inputs)]
    writes = [f"o{k}" for k in range(len(outputs))]
    node = helper.make_node(kind, reads, writes, domain=domain, **attributes)
    sizes = {name: shape for name, shape in zip(reads, inputs, strict=True) if name}
    graph = graph_of([node], sizes, dict(zip(writes, outputs, strict=True)))
    problem, notes = read(tmp_path, graph)
    assert problem.time["v100"][0] == pytest.approx(flops / RATE, rel=0.1)
    assert not notes


def test_a_fourier_transform_is_a_fast_one(tmp_path):
    node = helper.make_node("DFT", ["x"], ["y"], axis=1)
    graph = graph_of([node], {"x": [512, 65536, 2]}, {"y": [512, 65536, 2]})
    seconds = read(tmp_path, graph)[0].time["v100"][0]
    size = 2 * 8 * 512 * 65536
    expected = max(512 * 5 * 65536 * log2(65536) / RATE, size / GPUS["v100"].bandwidth)
    assert seconds == pytest.approx(expected, rel=0.1)


SQUARE = [1024, 1024]
PRODUCT = 2 * 1024**3 / RATE


def matmul(left, right, result):
    return helper.make_node("MatMul", [left, right], [result])


def weight(name, shape=SQUARE, kind=1):
    return TensorProto(name=name, dims=shape, data_type=kind)


def trips(count):
    return helper.make_tensor("trips", TensorProto.INT64, [], [count])


def loop(count):
    """h = x; `count` times: h = (h @ w) @ w, where only the loop's end has a size in the file."""
    body = graph_of(
        [
            matmul("h", "w", "inner"),
            matmul("inner", "w", "next"),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        {"step": [], "go": [], "h": SQUARE},
        {"on": [], "next": SQUARE},
    )
    node = helper.make_node(
        "Loop", ["trips" if count else "", "", "x"], ["y"], body=body
    )
    weights = [weight("w"), *([trips(count)] if count else [])]
    return graph_of([node], {"x": SQUARE}, {"y": SQUARE}, initializer=weights)


def test_a_loop_takes_what_its_passes_take(tmp_path):
    problem, notes = read(tmp_path, loop(7))
    launches = 7 * GPUS["v100"].launch  # of the Identity
    assert problem.time["v100"][0] == pytest.approx(14 * PRODUCT + launches, rel=0.05)
    assert problem.state[0] == 4 * 1024**2 + 8
    assert not notes
    problem, notes = read(tmp_path, loop(None))
    assert problem.time["v100"][0] == pytest.approx(2 * PRODUCT, rel=0.05)
    assert len(notes) == 1
    assert (
        "loops that are priced as one pass, as the file has no trip count: 1"
        in notes[0]
    )


def test_a_scan_runs_along_its_axis(tmp_path):
    body = graph_of([matmul("s", "x", "t")], {"s": SQUARE, "x": SQUARE}, {"t": SQUARE})
    node = helper.make_node(
        "Scan", ["s0", "xs"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[1]
    )
    graph = graph_of([node], {"s0": SQUARE, "xs": [1024, 5, 1024]}, {"y": SQUARE})
    problem, _ = read(tmp_path, graph)
    assert problem.time["v100"][0] == pytest.approx(5 * PRODUCT, rel=0.01)


def test_an_if_takes_its_dearest_branch_and_waits_for_what_both_read(tmp_path):
    then = graph_of([matmul("h", "w", "a"), matmul("a", "w", "b")], {}, {"b": SQUARE})
    other = graph_of([matmul("g", "v", "c")], {}, {"c": SQUARE})
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Tanh", ["x"], ["g"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
    ]
    graph = graph_of(
        nodes,
        {"x": SQUARE, "flag": []},
        {"y": SQUARE},
        value_info=[helper.make_tensor_value_info(name, 1, SQUARE) for name in "hg"],
        initializer=[weight("w"), weight("v")],
    )
    problem, _ = read(tmp_path, graph)
    assert problem.graph.names == ("0 Relu", "1 Tanh", "2 If")
    assert {
        (int(s), int(t)) for s, t in zip(*problem.graph.edges[:2], strict=True)
    } == {
        (0, 2),
        (1, 2),
    }
    assert problem.graph.size.tolist() == [4.0 * 1024**2] * 2
    assert problem.state.tolist() == [0, 0, 2 * 4 * 1024**2]
    assert problem.time["v100"][2] == pytest.approx(2 * PRODUCT, rel=0.05)


def test_functions_are_their_bodies_also_within_functions(tmp_path):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    inner = helper.make_function("mine", "Twice", ["a", "b"], ["c"], [], opsets)
    inner.node.extend([matmul("a", "b", "t"), matmul("t", "b", "c")])
    cast = helper.make_node("Cast", ["r"], ["q"])
    cast.attribute.append(onnx.AttributeProto(name="to", type=2, ref_attr_name="kind"))
    outer = helper.make_function(
        "mine", "Block", ["a", "b"], ["q"], [cast], opsets, attributes=["kind"]
    )
    outer.node.insert(0, helper.make_node("Twice", ["a", "b"], ["r"], domain="mine"))
    nodes = [
        helper.make_node("Block", ["x", "w"], ["h"], domain="mine", kind=10),
        helper.make_node("Block", ["h", "w"], ["y"], domain="mine", kind=10),
    ]
    graph = graph_of(
        nodes,
        {"x": SQUARE},
        {"y": SQUARE},
        initializer=[weight("w")],
        value_info=[helper.make_tensor_value_info("h", 10, SQUARE)],
    )
    problem, notes = read(tmp_path, graph, [outer, inner])
    names = [
        f"{k}.{part}"
        for k in range(2)
        for part in ("0.0 MatMul", "0.1 MatMul", "1 Cast")
    ]
    assert list(problem.graph.names) == names
    # "h" is the float16 result of the cast: half of the bytes of the others.
    sizes = [4.0 * 1024**2, 4.0 * 1024**2, 2.0 * 1024**2, 2.0 * 1024**2, 2.0 * 1024**2]
    assert problem.graph.size.tolist() == sizes
    assert problem.state.sum() == 4 * 1024**2
    assert len({problem.colocate[k] for k in (0, 1, 3, 4)}) == 1
    assert not notes
    outer.node[0].op_type = "Block"
    with pytest.raises(FormatError, match=r"functions\[Block\]: calls itself"):
        read(tmp_path, graph, [outer, inner])


@pytest.mark.parametrize("form", ["constant", "identity", "dequantized", "shared"])
def test_weights_stay_whichever_way_they_are_written(tmp_path, form):
    """State is what the file stores, and nothing of it travels."""
    tensor = weight("", [4096, 4096], TensorProto.INT8 if form == "dequantized" else 1)
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor)]
    readers, size = 1, 4 * 4096**2
    if form == "identity":
        nodes.append(helper.make_node("Identity", ["w"], ["v"]))
        nodes.append(helper.make_node("Transpose", ["v"], ["u"]))
    elif form == "dequantized":
        nodes.append(helper.make_node("Constant", [], ["scale"], value_float=0.5))
        nodes.append(helper.make_node("DequantizeLinear", ["w", "scale"], ["u"]))
        size = 4096**2 + 4
    else:
        nodes[0].output[0] = "u"
        readers = 2 if form == "shared" else 1
    nodes += [matmul("x", "u", f"y{k}") for k in range(readers)]
    outputs = {f"y{k}": [16, 4096] for k in range(readers)}
    problem, _ = read(tmp_path, graph_of(nodes, {"x": [16, 4096]}, outputs))
    assert problem.num_ops == readers
    assert problem.state.tolist() == [size] + [0] * (readers - 1)
    assert problem.graph.size.tolist() == []
    assert len(set(problem.colocate)) == 1


def test_scalars_that_ops_share_do_not_tie_them(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "two"], [name]) for name in ("y", "z")]
    two = helper.make_tensor("two", 1, [], [2.0])
    graph = graph_of(
        nodes, {"x": SQUARE}, {"y": SQUARE, "z": SQUARE}, initializer=[two]
    )
    problem, _ = read(tmp_path, graph)
    assert problem.colocate == (None, None)


BITS = {
    **{"FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8},
    **{
        "FLOAT8E8M0": 8,
        "INT4": 4,
        "UINT4": 4,
        "FLOAT4E2M1": 4,
        "INT2": 2,
        "UINT2": 2,
        "BOOL": 8,
    },
    **{"FLOAT16": 16, "BFLOAT16": 16, "DOUBLE": 64, "COMPLEX64": 64, "COMPLEX128": 128},
    **{
        "FLOAT": 32,
        "INT8": 8,
        "UINT8": 8,
        "INT16": 16,
        "UINT16": 16,
        "INT32": 32,
        "UINT32": 32,
    },
    **{"INT64": 64, "UINT64": 64, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6},
}


@pytest.mark.parametrize(
    "kind", [name for name, number in TensorProto.DataType.items() if number]
)
def test_every_element_type_has_its_bytes(tmp_path, kind):
    """Of 33 x 31 elements; those below a byte are packed."""
    number = TensorProto.DataType.Value(kind)
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    tensor = weight("w", [33, 31], number)
    expected = -(-33 * 31 * BITS.get(kind, 0) // 8)
    if kind == "STRING":
        tensor.string_data.extend([b"four"] * 33 * 31)
        expected = 4 * 33 * 31
    graph = graph_of([node], {"x": [2]}, {"y": [2, 31]}, initializer=[tensor])
    problem, _ = read(tmp_path, graph)
    assert problem.state[0] == expected


def test_sparse_and_external_weights_are_counted_without_being_read(tmp_path):
    sparse = helper.make_sparse_tensor(
        weight("s", [1000]), weight("", [1000], TensorProto.INT64), SQUARE
    )
    external = weight("e")
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="absent.bin")
    graph = graph_of(
        [matmul("x", "s", "h"), matmul("h", "e", "y")],
        {"x": SQUARE},
        {"y": SQUARE},
        initializer=[external],
        sparse_initializer=[sparse],
        value_info=[helper.make_tensor_value_info("h", 1, SQUARE)],
    )
    problem, _ = read(tmp_path, graph)
    assert problem.state.tolist() == [12 * 1000, 4 * 1024**2]


def test_operators_that_are_not_known_are_named_with_their_count(tmp_path):
    nodes = [helper.make_node("Shuffle", ["x"], ["h"], domain="org.lab")]
    nodes.append(helper.make_node("Shuffle", ["h"], ["g"], domain="org.lab"))
    nodes.append(helper.make_node("TreeEnsemble", ["g"], ["y"], domain="ai.onnx.ml"))
    graph = graph_of(
        nodes,
        {"x": SQUARE},
        {"y": SQUARE},
        value_info=[helper.make_tensor_value_info(name, 1, SQUARE) for name in "hg"],
    )
    _, notes = read(tmp_path, graph)
    assert len(notes) == 1
    assert "2 Shuffle (org.lab), 1 TreeEnsemble (ai.onnx.ml)" in notes[0]


@pytest.mark.parametrize(
    ("node", "sizes", "said"),
    [
        (matmul("x", "w", "y"), {"x": [2, "batch"], "w": SQUARE}, "dim_param batch"),
        (helper.make_node("Constant", [], ["y"]), {}, "value: missing of a Constant"),
        (
            helper.make_node("Conv", ["x"], ["y"]),
            {"x": SQUARE},
            r"input\[1\]: missing of Conv",
        ),
        (
            helper.make_node("Attention", ["x", "x", "x"], ["y"]),
            {"x": [3]},
            r"Attention cannot have inputs of sizes \[3\]",
        ),
        (
            helper.make_node("Relu", ["x"], ["y"]),
            {"x": [2, -1]},
            "is -1; export the model",
        ),
        (
            helper.make_node("Relu", ["x\n2"], ["y"]),
            {"x": [2, 2]},
            r"value_info\[x\\n2\]: missing",
        ),
    ],
)
def test_what_a_node_lacks_is_said_in_one_line(tmp_path, node, sizes, said):
    graph = graph_of([node], sizes, {"y": [2, 2]})
    with pytest.raises(FormatError, match=said) as error:
        read(tmp_path, graph)
    assert "\n" not in str(error.value)


def test_an_element_type_from_the_future_is_refused(tmp_path):
    graph = graph_of(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 2]}, {"y": [2, 2]}
    )
    graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(
        FormatError, match=r"value_info\[x\]: element type 99 is not in onnx.proto"
    ):
        read(tmp_path, graph)


def test_sizes_that_a_model_computes_are_followed(tmp_path):
    """Shape, Gather, Mul, Concat, Reshape: as exporters write a flattening of the batch."""
    integers = {
        "first": ([], [0]),
        "second": ([], [1]),
        "axis": ([1], [0]),
        "end": ([1], [64]),
    }
    weights = [helper.make_tensor(name, 7, *rest) for name, rest in integers.items()]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["a"]),
        helper.make_node("Gather", ["shape", "second"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("Unsqueeze", ["c", "axis"], ["d"]),
        helper.make_node("Concat", ["d", "end"], ["e"], axis=0),
        helper.make_node("Reshape", ["x", "e"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    names = {"shape": [3], "a": [], "b": [], "c": [], "d": [1], "e": [2]}
    infos = [
        helper.make_tensor_value_info(name, 7, shape) for name, shape in names.items()
    ]
    infos.append(helper.make_tensor_value_info("flat", 1, ["unk__0", "unk__1"]))
    graph = graph_of(
        nodes,
        {"x": [8, 16, 64]},
        {"y": [128, 64]},
        initializer=weights,
        value_info=infos,
    )
    problem, _ = read(tmp_path, graph)
    last = problem.graph.producer.tolist().index(6)
    assert problem.graph.size[last] == 4 * 128 * 64


def test_weights_that_a_branch_dequantizes_stay(tmp_path):
    """Outer constants that a branch prepares: state in the bytes of the file, and no message."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("Transpose", ["d"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["z"]),
    ]
    then = graph_of(nodes, {}, {"z": SQUARE})
    other = graph_of([helper.make_node("Identity", ["x"], ["v"])], {}, {"v": SQUARE})
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    weights = [weight("w", SQUARE, TensorProto.INT8), weight("s", [], 1)]
    graph = graph_of(
        [node], {"x": SQUARE, "flag": []}, {"y": SQUARE}, initializer=weights
    )
    problem, _ = read(tmp_path, graph)
    assert problem.state.tolist() == [1024**2 + 4]
    assert problem.time["v100"][0] == pytest.approx(PRODUCT, rel=0.1)
