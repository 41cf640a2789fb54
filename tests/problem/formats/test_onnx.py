"""Models as protobuf writes them, against PyTorch's own shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.cli.main import run
from gnnplace.errors import FormatError
from gnnplace.problem.cluster.gpus import GPUS
from gnnplace.problem.formats import convert
from tests.problem.formats.schemas import ONNX, classes

PROTO = classes("onnx_subset", ONNX)
MODEL = nn.Sequential(
    nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 5)
)
NODES = [
    ("Conv", ["x", "0.weight", "0.bias"], "conv"),
    ("Relu", ["conv"], "relu"),
    ("Flatten", ["relu"], "flat"),
    ("Gemm", ["flat", "3.weight", "3.bias"], "y"),
    ("Gemm", ["flat", "3.weight", "3.bias"], "z"),
]


def value(name, shape):
    dims = [{"dim_param": d} if isinstance(d, str) else {"dim_value": d} for d in shape]
    kind = {"tensor_type": {"elem_type": 1, "shape": {"dim": dims}}}
    return PROTO["ValueInfoProto"](name=name, type=kind)


def model(batch=2, without=()):
    x, shapes = torch.zeros(2, 3, 8, 8), {}
    for (_, _, name), layer in zip(NODES, MODEL, strict=False):
        x = layer(x)
        shapes[name] = tuple(x.shape)
    shapes["z"] = shapes["y"]
    made = PROTO["ModelProto"](ir_version=10)
    made.graph.input.append(value("x", (batch, 3, 8, 8)))
    for kind, inputs, name in NODES:
        made.graph.node.add(op_type=kind, input=inputs, output=[name])
        if name not in without:
            made.graph.value_info.append(value(name, shapes[name]))
    for name, weight in MODEL.state_dict().items():
        made.graph.initializer.add(name=name, dims=weight.shape, data_type=1)
    return made.SerializeToString()


def test_a_forward_pass_has_pytorch_s_bytes_and_a_roofline_s_seconds(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(model())
    problem = convert(path, "onnx")
    assert problem.graph.names == ("0 Conv", "1 Relu", "2 Flatten", "3 Gemm", "4 Gemm")
    with torch.no_grad():
        conv = MODEL[0](torch.zeros(2, 3, 8, 8))
    assert problem.graph.size.tolist() == [4.0 * conv.numel()] * 3
    assert problem.graph.consumers(2).tolist() == [3, 4]
    weights = [4.0 * sum(p.numel() for p in MODEL[k].parameters()) for k in (0, 3)]
    assert problem.state.tolist() == [weights[0], 0.0, 0.0, weights[1], 0.0]
    assert problem.colocate[3] == problem.colocate[4] != problem.colocate[0]
    assert problem.estimated.all()
    gpu = GPUS["v100"]
    size = 4 * (2 * 3 * 64 + conv.numel()) + weights[0]
    flops = 2 * conv.numel() * 27
    expected = max(gpu.launch, flops / gpu.rates["float32"], size / gpu.bandwidth)
    assert problem.time["v100"][0] == pytest.approx(expected)


def test_what_nobody_reads_needs_no_shape(tmp_path):
    """As the mask of a Dropout has none after inference by onnx 1.23 (its AlexNet, its VGG-19)."""
    made = PROTO["ModelProto"].FromString(model())
    made.graph.node[1].output.append("mask")
    path = tmp_path / "net.onnx"
    path.write_bytes(made.SerializeToString())
    (tmp_path / "plain.onnx").write_bytes(model())
    with_mask, without = (convert(p, "onnx") for p in (path, tmp_path / "plain.onnx"))
    assert with_mask.graph.size.tolist() == without.graph.size.tolist()
    assert with_mask.time["v100"].tolist() == without.time["v100"].tolist()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            model(batch="batch"),
            r"graph.input\[x\].type.tensor_type.shape.dim\[0\]: is 'batch'",
        ),
        (model(without=("relu",)), r"graph.value_info\[relu\]: missing"),
        (b"", "graph.node: missing"),
        (model()[:-3], "cut off"),
        (b"\xff" * 40, "no protobuf message"),
    ],
)
def test_what_a_file_lacks_is_named_by_its_key(tmp_path, data, said, capsys):
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=said):
        convert(path, "onnx")
    assert (
        run(["convert", str(path), "--from", "onnx", "-o", str(tmp_path / "p.json")])
        == 2
    )
    assert "Traceback" not in capsys.readouterr().err
