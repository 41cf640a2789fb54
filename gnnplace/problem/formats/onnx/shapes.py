"""Sizes that an operator decides from its inputs, for values whose sizes are not in the file.

As ``onnx.shape_inference`` has them, for the operators that models consist of; the value of small
constants, and of sums of sizes that a model computes itself (`Shape`, `Gather`, `Concat`), decide
where they have to. What is not decided stays missing, and the file is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod

import numpy as np

from gnnplace.problem.formats.onnx.messages import INT64, MAX_NUMBERS, OnnxNode, Value
from gnnplace.problem.formats.onnx.operators import MICROSOFT, split_names

BOOL = 9
UINT8 = 2
INT32 = 6
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class OperatorInputs:
    """A node with what is known of its inputs.

    Attributes:
        node: The node.
        values: Sizes; None of what is left out.
        numbers: Elements of inputs that are small whole constants; None of all others.
    """

    node: OnnxNode
    values: tuple[Value | None, ...]
    numbers: tuple[Numbers | None, ...]

    def value(self, position: int) -> Value:
        """Return an input's sizes. Raises LookupError where there is none."""
        value = self.values[position]
        if value is None:
            raise LookupError(position)
        return value

    def optional(self, position: int) -> Value | None:
        """Return an input's sizes; None where it is left out."""
        if position < len(self.values):
            return self.values[position]
        return None

    def constant(self, position: int, key: str = "") -> Numbers | None:
        """Return numbers that older opsets have as attribute `key`, and newer ones as an input.

        Raises:
            LookupError: It is an input, and not constant.
        """
        if key:
            attribute = self.node.integers(key)
        else:
            attribute = None
        if attribute is not None:
            return attribute
        if self.optional(position) is None:
            return None
        numbers = self.numbers[position]
        if numbers is None:
            raise LookupError(position)
        return numbers


def infer_outputs(inputs: OperatorInputs) -> list[Value] | None:
    """Return sizes of the first outputs of a node; None where its inputs do not decide them."""
    node = inputs.node
    rule = RULES.get((node.domain, node.kind))
    if rule is None:
        return None
    try:
        result = rule(inputs)
    except (LookupError, ValueError, ZeroDivisionError, TypeError, OverflowError):
        return None
    if isinstance(result, list):
        values = result
    else:
        values = [result]
    if all(size >= 0 for value in values for size in value.shape):
        return values
    return None


def compute_numbers(inputs: OperatorInputs) -> Numbers | None:
    """Return the elements of a small whole result, of operators that models compute sizes by."""
    kind = inputs.node.kind
    try:
        if kind == "Shape":
            shape = inputs.value(0).shape
            end = inputs.node.integer("end", len(shape))
            return shape[slice(inputs.node.integer("start", 0), end)]
        if kind == "Size":
            return (inputs.value(0).elements,)
        constants = [numbers for numbers in inputs.numbers if numbers is not None]
        if not constants or len(constants) < sum(
            value is not None for value in inputs.values
        ):
            return None
        if kind in ARITHMETIC:
            result = ARITHMETIC[kind](*map(np.array, constants))
            return tuple(np.atleast_1d(result).ravel().astype(int).tolist())
        return _pick_numbers(inputs, constants)
    except (LookupError, ValueError, ZeroDivisionError, TypeError):
        return None


def _pick_numbers(inputs: OperatorInputs, constants: list[Numbers]) -> Numbers | None:
    """Return the elements of operators that copy, select or fill."""
    kind = inputs.node.kind
    rank = len(inputs.value(0).shape)
    if kind in ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"):
        return constants[0]
    if kind == "Concat":
        return tuple(number for numbers in constants for number in numbers)
    if kind == "Gather" and rank == 1:
        return tuple(constants[0][index] for index in constants[1])
    if kind == "Slice" and rank == 1:
        if len(constants) > 4:
            step = constants[4][0]
        else:
            step = 1
        return constants[0][constants[1][0] : constants[2][0] : step]
    if kind == "ConstantOfShape" and prod(constants[0]) <= MAX_NUMBERS:
        attribute = inputs.node.attributes.get("value")
        if attribute and attribute.tensor:
            fill = attribute.tensor.numbers
        else:
            fill = None
        if fill:
            return fill * prod(constants[0])
        return None
    if kind == "Range" and len(constants) == 3:
        numbers = range(constants[0][0], constants[1][0], constants[2][0])
        if len(numbers) <= MAX_NUMBERS:
            return tuple(numbers)
        return None
    if kind == "Expand" and prod(constants[1]) <= MAX_NUMBERS:
        return tuple(np.broadcast_to(constants[0], constants[1]).ravel().tolist())
    return None


ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.floor_divide,
    "Mod": np.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Where": np.where,
}

# The numbers in an input decide the sizes of the output: ``onnx.shape_inference`` knows them only
# where they are constants of the file.
DECIDED_BY_NUMBERS = split_names(
    """
    CenterCropPad ConstantOfShape Expand Loop Pad Range ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape
    Resize Scan Slice Split Squeeze Tile TopK Unsqueeze
    """
)


# --- rules ------------------------------------------------------------------------------------


def _like(shape: Sequence[int], value: Value) -> Value:
    return Value(
        shape=tuple(int(size) for size in shape), element_type=value.element_type
    )


def _same(inputs: OperatorInputs) -> Value:
    return _like(inputs.value(0).shape, inputs.value(0))


def _broadcast(inputs: OperatorInputs) -> Value:
    shapes = [value.shape for value in inputs.values if value is not None]
    return _like(np.broadcast_shapes(*shapes), inputs.value(0))


def _infer_comparison(inputs: OperatorInputs) -> Value:
    return Value(shape=_broadcast(inputs).shape, element_type=BOOL)


def _infer_test(inputs: OperatorInputs) -> Value:
    return Value(shape=inputs.value(0).shape, element_type=BOOL)


def _where(inputs: OperatorInputs) -> Value:
    return _like(_broadcast(inputs).shape, inputs.value(1))


def _cast(inputs: OperatorInputs) -> Value:
    return Value(inputs.value(0).shape, inputs.node.integer("to", 0))


def _like_second(inputs: OperatorInputs) -> Value:
    return Value(inputs.value(0).shape, inputs.value(1).element_type)


def _infer_quantized(inputs: OperatorInputs) -> Value:
    zero_point = inputs.optional(2)
    if zero_point:
        kind = zero_point.element_type
    else:
        kind = inputs.node.integer("output_dtype", UINT8)
    return Value(inputs.value(0).shape, kind or UINT8)


def _dropout(inputs: OperatorInputs) -> list[Value]:
    value = inputs.value(0)
    return [_same(inputs), Value(shape=value.shape, element_type=BOOL)]


def _product_shape(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a matrix product as numpy broadcasts it."""
    if not first or not second or first[-1] != second[max(len(second) - 2, 0)]:
        raise ValueError("sizes of a product")
    batch = np.broadcast_shapes(tuple(first[:-2]), tuple(second[:-2]))
    rows = first[-2:-1]
    if len(second) > 1:
        columns = second[-1:]
    else:
        columns = ()
    return (*batch, *rows, *columns)


def _matmul(inputs: OperatorInputs) -> Value:
    shape = _product_shape(inputs.value(0).shape, inputs.value(1).shape)
    integer = inputs.node.kind == "MatMulInteger"
    if integer:
        return Value(shape, INT32)
    return _like(shape, inputs.value(0))


def _infer_quantized_matmul(inputs: OperatorInputs) -> Value:
    shape = _product_shape(inputs.value(0).shape, inputs.value(3).shape)
    return _like(shape, inputs.value(7))


def _infer_fused_matmul(inputs: OperatorInputs) -> Value:
    first = list(inputs.value(0).shape)
    second = list(inputs.value(1).shape)
    if inputs.node.integer("transBatchA", 0) or inputs.node.integer("transBatchB", 0):
        raise LookupError("transBatchA")
    for key, shape in (("transA", first), ("transB", second)):
        if inputs.node.integer(key, 0) and len(shape) > 1:
            shape[-2:] = shape[-1], shape[-2]
    return _like(_product_shape(first, second), inputs.value(0))


def _gemm(inputs: OperatorInputs) -> Value:
    node = inputs.node
    factor = inputs.value(0)
    rows = factor.shape[1 if node.integer("transA", 0) else 0]
    columns = inputs.value(1).shape[0 if node.integer("transB", 0) else 1]
    return _like((rows, columns), factor)


def _infer_packed_matmul(inputs: OperatorInputs) -> Value:
    return _like(
        (*inputs.value(0).shape[:-1], inputs.node.integer("N", 0)), inputs.value(0)
    )


def _window_sizes(
    inputs: OperatorInputs, shape: Sequence[int], window: Sequence[int]
) -> list[int]:
    """Return the sizes of an output over which a window slides."""
    node = inputs.node
    sizes = shape[2:]
    count = len(sizes)
    strides = node.integers("strides") or (1,) * count
    dilations = node.integers("dilations") or (1,) * count
    pads = node.integers("pads") or (0,) * (2 * count)
    automatic = node.text("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        return [
            ceil(size / stride) for size, stride in zip(sizes, strides, strict=True)
        ]
    if automatic == "VALID":
        pads = (0,) * (2 * count)
    rounding = ceil if node.integer("ceil_mode", 0) else floor
    result = []
    for axis, size in enumerate(sizes):
        reach = dilations[axis] * (window[axis] - 1) + 1
        padded = size + pads[axis] + pads[axis + count]
        length = rounding((padded - reach) / strides[axis]) + 1
        # A window that would begin in the padding behind the end is dropped.
        if (
            node.integer("ceil_mode", 0)
            and (length - 1) * strides[axis] >= size + pads[axis]
        ):
            length -= 1
        result.append(length)
    return result


def _convolution(weight: int, kind_of: int | None) -> Callable[[OperatorInputs], Value]:
    def infer(inputs: OperatorInputs) -> Value:
        shape = inputs.value(0).shape
        filters = inputs.value(weight).shape
        sizes = _window_sizes(inputs, shape, filters[2:])
        result = (shape[0], filters[0], *sizes)
        if kind_of is None:
            return Value(shape=result, element_type=INT32)
        return _like(result, inputs.value(kind_of))

    return infer


def _infer_transposed_convolution(inputs: OperatorInputs) -> Value:
    node = inputs.node
    shape = inputs.value(0).shape
    filters = inputs.value(1).shape
    count = len(shape) - 2
    output_shape = node.integers("output_shape")
    channels = filters[1] * node.integer("group", 1)
    if output_shape is not None:
        return _like((shape[0], channels, *output_shape[-count:]), inputs.value(0))
    strides = node.integers("strides") or (1,) * count
    dilations = node.integers("dilations") or (1,) * count
    extra = node.integers("output_padding") or (0,) * count
    pads = node.integers("pads") or (0,) * (2 * count)
    sizes = []
    for axis in range(count):
        reach = dilations[axis] * (filters[2 + axis] - 1) + 1
        size = strides[axis] * (shape[2 + axis] - 1) + extra[axis] + reach
        sizes.append(size - pads[axis] - pads[axis + count])
    if node.text("auto_pad", "NOTSET").startswith("SAME"):
        sizes = [size * stride for size, stride in zip(shape[2:], strides, strict=True)]
    return _like((shape[0], channels, *sizes), inputs.value(0))


def _pool(inputs: OperatorInputs) -> list[Value]:
    shape = inputs.value(0).shape
    window = inputs.node.integers("kernel_shape") or ()
    sizes = _window_sizes(inputs, shape, window)
    result = _like((*shape[:2], *sizes), inputs.value(0))
    indices = Value(shape=result.shape, element_type=INT64)
    return [result, indices]


def _global_pool(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    return _like((*shape[:2], *(1 for _ in shape[2:])), inputs.value(0))


def _transpose(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    order = inputs.node.integers("perm") or tuple(range(len(shape)))[::-1]
    return _like([shape[axis] for axis in order], inputs.value(0))


def _reshape(inputs: OperatorInputs) -> Value:
    value = inputs.value(0)
    target = list(inputs.constant(1, "shape") or ())
    if not inputs.node.integer("allowzero", 0):
        target = [
            size if size else value.shape[axis] for axis, size in enumerate(target)
        ]
    if -1 in target:
        divisor = prod(size for size in target if size != -1)
        target[target.index(-1)] = value.elements // divisor
    if prod(target) != value.elements:
        raise ValueError("sizes of a reshape")
    return _like(target, value)


def _flatten(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    axis = inputs.node.integer("axis", 1)
    return _like((prod(shape[:axis]), prod(shape[axis:])), inputs.value(0))


def _squeeze(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    axes = inputs.constant(1, "axes")
    if axes is None:
        sizes = [size for size in shape if size != 1]
    else:
        removed = {axis % len(shape) for axis in axes}
        sizes = [size for axis, size in enumerate(shape) if axis not in removed]
    return _like(sizes, inputs.value(0))


def _unsqueeze(inputs: OperatorInputs) -> Value:
    shape = list(inputs.value(0).shape)
    axes = inputs.constant(1, "axes") or ()
    rank = len(shape) + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    return _like(shape, inputs.value(0))


def _concat(inputs: OperatorInputs) -> Value:
    shapes = [value.shape for value in inputs.values if value is not None]
    axis = inputs.node.integer("axis", 1)
    shape = list(shapes[0])
    shape[axis] = sum(one[axis] for one in shapes)
    return _like(shape, inputs.value(0))


def _split(inputs: OperatorInputs) -> list[Value]:
    shape = list(inputs.value(0).shape)
    node = inputs.node
    axis = node.integer("axis", 0)
    sizes = inputs.constant(1, "split")
    if sizes is None:
        count = len(node.outputs)
        share = ceil(shape[axis] / count)
        sizes = tuple(min(share, shape[axis] - share * k) for k in range(count))
    results = []
    for size in sizes:
        shape[axis] = size
        results.append(_like(shape, inputs.value(0)))
    return results


def _slice(inputs: OperatorInputs) -> Value:
    shape = list(inputs.value(0).shape)
    starts = inputs.constant(1, "starts") or ()
    ends = inputs.constant(2, "ends") or ()
    axes = inputs.constant(3, "axes") or tuple(range(len(starts)))
    steps = inputs.constant(4) or (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        positions = range(shape[axis])
        shape[axis] = len(positions[slice(start, end, step)])
    return _like(shape, inputs.value(0))


def _gather(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    indices = inputs.value(1).shape
    axis = inputs.node.integer("axis", 0) % len(shape)
    return _like((*shape[:axis], *indices, *shape[axis + 1 :]), inputs.value(0))


def _gather_elements(inputs: OperatorInputs) -> Value:
    return _like(inputs.value(1).shape, inputs.value(0))


def _gather_nd(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    indices = inputs.value(1).shape
    batch = inputs.node.integer("batch_dims", 0)
    return _like((*indices[:-1], *shape[batch + indices[-1] :]), inputs.value(0))


def _expand(inputs: OperatorInputs) -> Value:
    shape = inputs.constant(1) or ()
    return _like(np.broadcast_shapes(inputs.value(0).shape, shape), inputs.value(0))


def _tile(inputs: OperatorInputs) -> Value:
    repeats = inputs.constant(1) or ()
    sizes = zip(inputs.value(0).shape, repeats, strict=True)
    return _like([size * repeat for size, repeat in sizes], inputs.value(0))


def _pad(inputs: OperatorInputs) -> Value:
    shape = list(inputs.value(0).shape)
    pads = inputs.constant(1, "pads") or ()
    axes = inputs.constant(3) or tuple(range(len(shape)))
    for index, axis in enumerate(axes):
        shape[axis] += pads[index] + pads[index + len(axes)]
    return _like(shape, inputs.value(0))


def _infer_reduction(inputs: OperatorInputs) -> Value:
    shape = inputs.value(0).shape
    node = inputs.node
    axes = inputs.constant(1, "axes")
    if not axes and node.integer("noop_with_empty_axes", 0):
        return _same(inputs)
    if axes:
        reduced = {axis % len(shape) for axis in axes}
    else:
        reduced = set(range(len(shape)))
    keep = node.integer("keepdims", 1)
    sizes = [1 if axis in reduced else size for axis, size in enumerate(shape)]
    if not keep:
        sizes = [size for axis, size in enumerate(shape) if axis not in reduced]
    return _like(sizes, inputs.value(0))


def _find_extreme_index(inputs: OperatorInputs) -> Value:
    shape = list(inputs.value(0).shape)
    axis = inputs.node.integer("axis", 0)
    shape[axis] = 1
    if not inputs.node.integer("keepdims", 1):
        del shape[axis]
    return Value(tuple(shape), INT64)


def _top(inputs: OperatorInputs) -> list[Value]:
    shape = list(inputs.value(0).shape)
    count = inputs.constant(1, "k")
    if count is None:
        raise LookupError("k")
    shape[inputs.node.integer("axis", -1)] = count[0]
    return [_like(shape, inputs.value(0)), Value(tuple(shape), INT64)]


def _infer_shape_op(inputs: OperatorInputs) -> Value:
    numbers = compute_numbers(inputs) or ()
    return Value((len(numbers),) if inputs.node.kind == "Shape" else (), INT64)


def _infer_filled(inputs: OperatorInputs) -> Value:
    value = inputs.node.attributes.get("value")
    if value and value.tensor:
        kind = value.tensor.value.element_type
    else:
        kind = 1
    return Value(tuple(inputs.constant(0) or ()), kind)


def _range(inputs: OperatorInputs) -> Value:
    bounds = [inputs.constant(position) for position in range(3)]
    start, stop, step = (one[0] for one in bounds if one)
    return _like((len(range(start, stop, step)),), inputs.value(0))


def _infer_resized(inputs: OperatorInputs) -> Value:
    sizes = inputs.constant(3)
    if sizes is None or len(sizes) != len(inputs.value(0).shape):
        raise LookupError("sizes")
    return _like(sizes, inputs.value(0))


def _blocks_to_space(inputs: OperatorInputs) -> Value:
    batch, channels, rows, columns = inputs.value(0).shape
    block = inputs.node.integer("blocksize", 1)
    if inputs.node.kind == "DepthToSpace":
        shape = (batch, channels // block**2, rows * block, columns * block)
    else:
        shape = (batch, channels * block**2, rows // block, columns // block)
    return _like(shape, inputs.value(0))


def _recurrence(inputs: OperatorInputs) -> list[Value]:
    first, second, _ = inputs.value(0).shape
    directions, _, hidden = inputs.value(2).shape
    shape: tuple[int, ...] = (first, directions, second, hidden)
    state: tuple[int, ...] = (directions, second, hidden)
    if inputs.node.integer("layout", 0):
        shape = (first, second, directions, hidden)
        state = (first, directions, hidden)
    value = inputs.value(0)
    return [
        _like(shape, value),
        _like(state, value),
        _like(state, value),
    ]


def _attention(inputs: OperatorInputs) -> list[Value]:
    query = inputs.value(0).shape
    value = inputs.value(2).shape
    if len(query) == 4:
        shape: tuple[int, ...] = (*query[:3], value[3])
    else:
        heads = inputs.node.integer("q_num_heads", 1)
        width = value[2] // inputs.node.integer("kv_num_heads", heads)
        shape = (*query[:2], heads * width)
    return [_like(shape, inputs.value(0))]


def _infer_projected_attention(inputs: OperatorInputs) -> list[Value]:
    weight = inputs.value(1).shape
    sizes = inputs.node.integers("qkv_hidden_sizes") or (weight[1] // 3,) * 3
    return [_like((*inputs.value(0).shape[:2], sizes[2]), inputs.value(0))]


def _group_query_attention(inputs: OperatorInputs) -> list[Value]:
    node = inputs.node
    query = inputs.value(0).shape
    heads = node.integer("num_heads", 1)
    width = query[2]
    if inputs.optional(1) is None:  # queries, keys and values side by side
        packed_heads = heads + 2 * node.integer("kv_num_heads", heads)
        width = heads * (width // packed_heads)
    return [_like((*query[:2], width), inputs.value(0))]


def _multi_head_attention(inputs: OperatorInputs) -> list[Value]:
    query = inputs.value(0)
    value = inputs.value(2)
    if len(query.shape) != 3 or len(value.shape) != 3:
        raise LookupError("value")
    return [_like((*query.shape[:2], value.shape[2]), query)]


Rule = Callable[[OperatorInputs], Value | list[Value]]
SAME = split_names(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Bernoulli BitwiseNot Ceil Celu Clip Cos
    Cosh CumProd CumSum Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax
    Identity InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization
    MeanVarianceNormalization Mish Neg Not RMSNormalization Reciprocal Relu ReverseSequence
    RotaryEmbedding Round Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign
    SimplifiedLayerNormalization Sin Sinh Softmax Softplus Softsign Sqrt SwiGLU Swish Tan Tanh
    TensorScatter ThresholdedRelu Trilu
    """
)
SAME_OF_MICROSOFT = split_names(
    """
    BiasGelu FastGelu Gelu QuickGelu RotaryEmbedding SkipLayerNormalization
    SkipSimplifiedLayerNormalization
    """
)
BROADCAST = split_names(
    """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul Or PRelu Pow
    Sub Sum Xor
    """
)
REDUCED = split_names(
    """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
    """
)
OF_ONNX: dict[str, Rule] = {
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(
        ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _infer_comparison
    ),
    **dict.fromkeys(("IsInf", "IsNaN"), _infer_test),
    **dict.fromkeys(REDUCED, _infer_reduction),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _global_pool
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrence),
    **dict.fromkeys(("ArgMax", "ArgMin"), _find_extreme_index),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matmul),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks_to_space),
    **dict.fromkeys(("Shape", "Size"), _infer_shape_op),
    "Where": _where,
    "Cast": _cast,
    "CastLike": _like_second,
    "QuantizeLinear": _infer_quantized,
    "DequantizeLinear": _like_second,
    "Dropout": _dropout,
    "QLinearMatMul": _infer_quantized_matmul,
    "Gemm": _gemm,
    "Conv": _convolution(1, 0),
    "ConvInteger": _convolution(1, None),
    "QLinearConv": _convolution(3, 7),
    "ConvTranspose": _infer_transposed_convolution,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "TopK": _top,
    "ConstantOfShape": _infer_filled,
    "Range": _range,
    "Resize": _infer_resized,
    "Attention": _attention,
}
OF_MICROSOFT: dict[str, Rule] = {
    **dict.fromkeys(SAME_OF_MICROSOFT, _same),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _infer_fused_matmul),
    **dict.fromkeys(("FusedGemm", "GemmFloat8"), _gemm),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _infer_packed_matmul),
    "FusedConv": _convolution(1, 0),
    "QuantizeLinear": _infer_quantized,
    "DequantizeLinear": _like_second,
    "Attention": _infer_projected_attention,
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _group_query_attention,
}
RULES: dict[tuple[str, str], Rule] = {
    **{("", kind): rule for kind, rule in OF_ONNX.items()},
    **{(MICROSOFT, kind): rule for kind, rule in OF_MICROSOFT.items()},
}
