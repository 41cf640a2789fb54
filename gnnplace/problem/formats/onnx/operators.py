"""What an ONNX operator computes: floating-point operations by its definition, and bytes.

A multiply-add counts as two. Products, convolutions, recurrences and transforms are counted by
their own formula; every other known operator takes one operation an element of what it reads or
writes, whichever is more (it is bound by memory). Operators of ONNX itself (opset 28) and those of
ONNX Runtime (``com.microsoft``) that its optimizers and exporters write. Attention is counted in
full, also where it is causal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, prod

from gnnplace.errors import InputError
from gnnplace.problem.formats.onnx.messages import OnnxNode, Value

MICROSOFT = "com.microsoft"


def split_names(text: str) -> frozenset[str]:
    """Return the names of a table in text."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Call:
    """A node with the sizes of what it reads and writes.

    Attributes:
        node: The node.
        inputs: Sizes; None for an optional input that is left out.
        outputs: Sizes; None for an optional output that is left out.
        numbers: By position the numbers of inputs that are small constants.
    """

    node: OnnxNode
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    numbers: dict[int, tuple[int, ...]]

    def shape(self, position: int) -> tuple[int, ...]:
        """Return an input's shape.

        Raises:
            InputError: The operator needs the input, and the node leaves it out.
        """
        value = self.optional(position)
        if value is None:
            kind = self.node.kind
            raise InputError(
                f"graph.node[{self.node.label}].input[{position}]: missing of {kind}"
            )
        return value.shape

    def optional(self, position: int) -> Value | None:
        """Return an input; None where it is left out."""
        if position < len(self.inputs):
            return self.inputs[position]
        return None

    @property
    def result(self) -> Value:
        """Return the first output that the node has."""
        for value in self.outputs:
            if value is not None:
                return value
        return Value((0,))


def count_flops(call: Call) -> float:
    """Return the floating-point operations of a call.

    Raises:
        InputError: Its inputs do not have the ranks that the operator's definition needs.
    """
    node = call.node
    formula = FORMULAS.get((node.domain, node.kind))
    if formula is None:
        return _per_element(call)
    try:
        return float(formula(call))
    except InputError:
        raise
    except (IndexError, ValueError, ZeroDivisionError, OverflowError):
        shapes = ", ".join(str(list(one.shape)) for one in call.inputs if one)
        raise InputError(
            f"graph.node[{node.label}]: {node.kind} cannot have inputs of sizes {shapes}"
        ) from None


def is_counted(node: OnnxNode) -> bool:
    """Return whether the operator is known, so that its operations are those of its definition."""
    if (node.domain, node.kind) in FORMULAS:
        return True
    return node.kind in ONE_PER_ELEMENT.get(node.domain, frozenset())


def count_bytes(call: Call) -> float:
    """Return the bytes that a call reads and writes. Look-ups read as much as they return."""
    written = sum(value.bytes for value in call.outputs if value is not None)
    sizes = [0 if value is None else value.bytes for value in call.inputs]
    if sizes and call.node.kind in READS_NOTHING:
        sizes[0] = 0
    if sizes and call.node.kind in READS_PART:
        sizes[0] = min(sizes[0], call.result.bytes)
    return float(sum(sizes) + written)


def _per_element(call: Call) -> float:
    values = [*call.outputs]
    if call.node.kind not in READS_PART | READS_NOTHING:
        values += call.inputs
    counts = [value.elements for value in values if value is not None]
    return float(max(counts, default=0))


# --- products ---------------------------------------------------------------------------------


def _contraction(
    shape: tuple[int, ...], transposed: bool = False, batch: bool = False
) -> int:
    """Return the length that a product sums over, of its first factor."""
    if transposed and len(shape) > 1:
        return shape[0 if batch else -2]
    return shape[-1]


def _matmul(call: Call) -> float:
    return 2.0 * call.result.elements * _contraction(call.shape(0))


def _count_fused_matmul(call: Call) -> float:
    node = call.node
    transposed, batch = (
        bool(node.integer(key, 0)) for key in ("transA", "transBatchA")
    )
    return 2.0 * call.result.elements * _contraction(call.shape(0), transposed, batch)


def _gemm(call: Call) -> float:
    return (
        2.0
        * call.result.elements
        * call.shape(0)[0 if call.node.integer("transA", 0) else 1]
    )


def _count_packed_matmul(call: Call) -> float:
    """Count A [..., K] times packed weights of `K` x `N` elements."""
    value = call.optional(0)
    return (
        2.0
        * (value.elements if value else 0)
        * call.node.integer("N", call.result.shape[-1])
    )


def _convolution(weight: int) -> Callable[[Call], float]:
    """Return the count of W [M, C / groups, window]: dilation and strides do not change it."""

    def count(call: Call) -> float:
        return 2.0 * call.result.elements * prod(call.shape(weight)[1:])

    return count


def _count_transposed_convolution(weight: int) -> Callable[[Call], float]:
    """Return the count of W [C, M / groups, window]: every input element meets all of its row."""

    def count(call: Call) -> float:
        return 2.0 * prod(call.shape(0)) * prod(call.shape(weight)[1:])

    return count


def _deformable_convolution(call: Call) -> float:
    """Count products, and the interpolation of each element of the window in every position."""
    weight = call.shape(1)
    batch, channels = call.shape(0)[:2]
    window = weight[2:]
    positions = prod(call.result.shape[2:])
    samples = batch * channels * prod(window) * positions
    neighbours = 2 ** len(window)
    products = call.result.elements * prod(weight[1:])
    return 2.0 * products + 2.0 * neighbours * samples


def _causal_convolution(call: Call) -> float:
    return 2.0 * prod(call.shape(0)) * call.shape(1)[-1]


def _einsum(call: Call) -> float:
    """Count the products of an equation, pair by pair from the left."""
    equation = call.node.text("equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    sizes: dict[str, int] = {}
    factors: list[str] = []
    for position, term in enumerate(terms.split(",")):
        shape = call.shape(position)
        hidden = len(shape) - len(term.replace("...", ""))
        # Labels of an ellipsis count from the right, as broadcasting does.
        if "..." in term:
            labels = [f"{k}" for k in range(hidden, 0, -1)]
        else:
            labels = []
        head, _, tail = term.partition("...")
        names = [*head, *labels, *tail]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
        factors.append("".join(names))
    if not arrow:
        result = "".join(sorted(name for name in sizes if terms.count(name) == 1))
    batch_labels = {name for name in sizes if name.isdigit()}
    kept_to_end = batch_labels.union(result.replace("...", ""))
    flops = 0.0
    product = factors[0]
    if len(factors) == 1:
        return float(prod(sizes[name] for name in set(product)))
    for position, factor in enumerate(factors[1:], 1):
        union = {*product, *factor}
        flops += 2.0 * prod(sizes[name] for name in union)
        needed = kept_to_end.union(*factors[position + 1 :])
        product = "".join(sorted(union & needed))
    return flops


def _count_experts(call: Call) -> float:
    """Count `k` experts a token: products with fc1, fc2 and, where there is one, fc3."""
    node = call.node
    positions = (2, 4, 6)
    elements_per_byte = 1
    if node.kind == "QMoE":  # with a scale behind every weight
        positions = (2, 5, 8)
        elements_per_byte = 8 // node.integer("expert_weight_bits", 4)
    products = 0
    for position in positions:
        weight = call.optional(position)
        if weight is not None:
            products += prod(weight.shape[1:]) * elements_per_byte
    tokens = prod(call.shape(0)[:-1])
    return 2.0 * tokens * node.integer("k", 1) * products


# --- recurrences ------------------------------------------------------------------------------


def _recurrence(call: Call) -> float:
    """Count X [steps, batch, input] (any order of the first two) with W and R of all directions."""
    rows = prod(call.shape(0)[:2])
    return 2.0 * rows * (prod(call.shape(1)) + prod(call.shape(2)))


def _linear_attention(call: Call) -> float:
    """Count a state of key width x value width a head: update, correction, decay, and output."""
    node = call.node
    batch, steps, width = call.shape(0)
    heads = node.integer("q_num_heads", 1)
    states = node.integer("kv_num_heads", heads)
    entries = (width // heads) * (call.shape(2)[2] // states)
    rule = node.text("update_rule", "gated_delta")
    per_state = 2 + (2 if "delta" in rule else 0) + (1 if "gated" in rule else 0)
    return float(batch * steps * entries * (2 * heads + per_state * states))


# --- attention --------------------------------------------------------------------------------


def _scores(queries: int, keys: int, key_width: int, value_width: int) -> float:
    """Return the operations of queries x keys, and of weights x values. Queries: over all heads."""
    return 2.0 * queries * keys * (key_width + value_width)


def _attention(call: Call) -> float:
    """Count ONNX's own, of rank 4 [batch, heads, length, width] or 3 [batch, length, width]."""
    query = call.shape(0)
    key = call.shape(1)
    value = call.shape(2)
    past = call.optional(4)
    past_length = past.shape[2] if past else 0
    if len(query) == 4:
        return _scores(
            queries=prod(query[:3]),
            keys=key[2] + past_length,
            key_width=query[3],
            value_width=value[3],
        )
    heads = call.node.integer("q_num_heads", 1)
    groups = call.node.integer("kv_num_heads", heads)
    return _scores(
        queries=prod(query[:2]) * heads,
        keys=key[1] + past_length,
        key_width=query[2] // heads,
        value_width=value[2] // groups,
    )


def _count_projected_attention(call: Call) -> float:
    """Count ONNX Runtime's `Attention`: the input times weights [input, q + k + v], then scores."""
    batch, length, _ = call.shape(0)
    weight = call.shape(1)
    sizes = call.node.integers("qkv_hidden_sizes") or (weight[1] // 3,) * 3
    past = call.optional(8 if call.node.kind == "QAttention" else 4)
    past_length = past.shape[3] if past else 0
    projection = 2.0 * batch * length * prod(weight)
    scores = _scores(
        queries=batch * length,
        keys=length + past_length,
        key_width=sizes[0],
        value_width=sizes[2],
    )
    return projection + scores


def _multi_head_attention(past_position: int) -> Callable[[Call], float]:
    """Return the count of queries, keys and values apart or packed, with keys from before."""

    def count(call: Call) -> float:
        query = call.shape(0)
        key = call.optional(1)
        value = call.optional(2)
        heads = call.node.integer("num_heads", 1)
        keys = query[1]
        width = query[2]
        if len(query) == 5:  # [batch, length, heads, 3, width]
            width = query[2] * query[4]
        elif key is None:  # queries, keys and values side by side
            width = query[2] // 3
        else:
            if len(key.shape) == 4:
                keys = key.shape[2]
            else:
                keys = key.shape[1]
        value_width = width
        if value is not None:
            shape = value.shape
            if len(shape) == 4:
                value_width = heads * shape[3]
            else:
                value_width = shape[2]
        past = call.optional(past_position)
        keys += past.shape[2] if past else 0
        return _scores(
            queries=prod(query[:2]),
            keys=keys,
            key_width=width,
            value_width=value_width,
        )

    return count


def _group_query_attention(call: Call) -> float:
    """Count queries of all heads with keys of the cache: as long as the cache that is returned."""
    node = call.node
    query = call.shape(0)
    heads = node.integer("num_heads", 1)
    is_packed = call.optional(1) is None
    heads_in_query = heads
    if is_packed:  # queries, keys and values side by side
        heads_in_query += 2 * node.integer("kv_num_heads", heads)
    width = heads * (query[2] // heads_in_query)
    if len(call.outputs) > 1:
        cache = call.outputs[1]
    else:
        cache = None
    past = call.optional(3)
    total = call.numbers.get(6)
    if total:
        keys = total[0]
    elif cache is not None:
        keys = cache.shape[2]
    else:
        keys = query[1] + (past.shape[2] if past else 0)
    return _scores(
        queries=prod(query[:2]),
        keys=keys,
        key_width=width,
        value_width=width,
    )


# --- transforms and the rest ------------------------------------------------------------------


def _fast_transform(length: int) -> float:
    """Return the operations of a complex fast Fourier transform: 5 n log2 n."""
    return 5.0 * length * log2(max(length, 2))


def _fourier(call: Call) -> float:
    shape = call.shape(0)
    # Opset 17 has an attribute, opset 20 a third input.
    axis = call.node.integer("axis", 1)
    if len(call.inputs) > 2:
        (axis,) = call.numbers.get(2, (-2,))
    (length,) = call.numbers.get(1, (shape[axis],))
    transforms = prod(shape[:-1]) / max(shape[axis], 1)
    is_real = shape[-1] == 1
    return transforms * _fast_transform(length) * (0.5 if is_real else 1.0)


def _short_time_fourier(call: Call) -> float:
    window = call.optional(2)
    batch, frames, bins = call.result.shape[:3]
    if call.node.integer("onesided", 1):
        length = 2 * (bins - 1)
    else:
        length = bins
    if window is not None:
        length = window.elements
    (length,) = call.numbers.get(3, (length,))
    signal = call.shape(0)
    is_real = len(signal) < 3 or signal[2] == 1
    transform = _fast_transform(length) * (0.5 if is_real else 1.0)
    return batch * frames * (transform + length)


def _window(call: Call) -> float:
    """Count a pool: one operation an element of the window."""
    window = call.node.integers("kernel_shape") or ()
    return float(max(call.result.elements * prod(window), prod(call.shape(0))))


def _determinant(call: Call) -> float:
    return prod(call.shape(0)) * call.shape(0)[-1] * 2 / 3


def _inverse(call: Call) -> float:
    return prod(call.shape(0)) * call.shape(0)[-1] * 2.0


def _affine_grid(call: Call) -> float:
    return 2.0 * call.result.elements * call.shape(0)[-1]


def _interpolation(call: Call) -> float:
    """Count 2 (linear) or 4 (cubic) neighbours along each axis that is interpolated."""
    if call.node.kind == "GridSample":
        usual_mode = "linear"
    else:
        usual_mode = "nearest"
    mode = call.node.text("mode", usual_mode)
    along_axis = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(mode, 2)
    axes = max(len(call.result.shape) - 2, 1)
    return 2.0 * call.result.elements * along_axis**axes


def _sort(call: Call) -> float:
    count = prod(call.shape(0))
    return count * log2(max(count, 2))


def _overlaps(call: Call) -> float:
    """Count every pair of boxes in every class, ten operations each."""
    batch, boxes = call.shape(0)[:2]
    return 10.0 * batch * call.shape(1)[1] * boxes * boxes


def _linear_model(call: Call) -> float:
    coefficients = call.node.attributes.get("coefficients")
    if len(call.shape(0)) > 1:
        rows = call.shape(0)[0]
    else:
        rows = 1
    return 2.0 * rows * (coefficients.num_floats if coefficients else 0)


def _rotation(call: Call) -> float:
    """Count two products and a sum an element."""
    return 3.0 * prod(call.shape(0))


FORMULAS: dict[tuple[str, str], Callable[[Call], float]] = {
    ("", "MatMul"): _matmul,
    ("", "MatMulInteger"): _matmul,
    ("", "QLinearMatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Einsum"): _einsum,
    ("", "Conv"): _convolution(1),
    ("", "ConvInteger"): _convolution(1),
    ("", "QLinearConv"): _convolution(3),
    ("", "ConvTranspose"): _count_transposed_convolution(1),
    ("", "DeformConv"): _deformable_convolution,
    ("", "CausalConvWithState"): _causal_convolution,
    ("", "LSTM"): _recurrence,
    ("", "GRU"): _recurrence,
    ("", "RNN"): _recurrence,
    ("", "Attention"): _attention,
    ("ai.onnx.preview", "FlexAttention"): _attention,
    ("", "LinearAttention"): _linear_attention,
    ("", "RotaryEmbedding"): _rotation,
    ("", "DFT"): _fourier,
    ("", "STFT"): _short_time_fourier,
    ("", "AveragePool"): _window,
    ("", "MaxPool"): _window,
    ("", "LpPool"): _window,
    ("", "Det"): _determinant,
    ("", "AffineGrid"): _affine_grid,
    ("", "GridSample"): _interpolation,
    ("", "Resize"): _interpolation,
    ("", "Upsample"): _interpolation,
    ("", "TopK"): _sort,
    ("", "Unique"): _sort,
    ("", "NonMaxSuppression"): _overlaps,
    ("ai.onnx.ml", "LinearClassifier"): _linear_model,
    ("ai.onnx.ml", "LinearRegressor"): _linear_model,
    (MICROSOFT, "FusedMatMul"): _count_fused_matmul,
    (MICROSOFT, "FusedMatMulActivation"): _count_fused_matmul,
    (MICROSOFT, "TransposeMatMul"): _count_fused_matmul,
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul,
    (MICROSOFT, "MatMulInteger16"): _matmul,
    (MICROSOFT, "DynamicQuantizeMatMul"): _matmul,
    (MICROSOFT, "QLinearMatMul"): _matmul,
    (MICROSOFT, "SparseToDenseMatMul"): _count_fused_matmul,
    (MICROSOFT, "MatMulNBits"): _count_packed_matmul,
    (MICROSOFT, "MatMulBnb4"): _count_packed_matmul,
    (MICROSOFT, "MatMulFpQ4"): _count_packed_matmul,
    (MICROSOFT, "FusedGemm"): _gemm,
    (MICROSOFT, "GemmFloat8"): _gemm,
    (MICROSOFT, "QGemm"): _gemm,
    (MICROSOFT, "GemmFastGelu"): _matmul,
    (MICROSOFT, "FusedConv"): _convolution(1),
    (MICROSOFT, "NhwcFusedConv"): _convolution(1),
    (MICROSOFT, "QLinearConv"): _convolution(3),
    (MICROSOFT, "ConvTransposeWithDynamicPads"): _count_transposed_convolution(1),
    (MICROSOFT, "QLinearConvTranspose"): _count_transposed_convolution(3),
    (MICROSOFT, "DynamicQuantizeLSTM"): _recurrence,
    (MICROSOFT, "Attention"): _count_projected_attention,
    (MICROSOFT, "QAttention"): _count_projected_attention,
    (MICROSOFT, "MultiHeadAttention"): _multi_head_attention(6),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): _multi_head_attention(5),
    (MICROSOFT, "GroupQueryAttention"): _group_query_attention,
    (MICROSOFT, "MoE"): _count_experts,
    (MICROSOFT, "QMoE"): _count_experts,
    (MICROSOFT, "RotaryEmbedding"): _rotation,
    (MICROSOFT, "Inverse"): _inverse,
    (MICROSOFT, "NhwcMaxPool"): _window,
    (MICROSOFT, "QLinearAveragePool"): _window,
}

# Operators that take one operation an element, as their definitions say.
ONE_PER_ELEMENT: dict[str, frozenset[str]] = {
    "": split_names(
        """
        Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization Bernoulli
        BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike
        Ceil Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Constant
        ConstantOfShape Cos Cosh CumProd CumSum DepthToSpace DequantizeLinear Div Dropout
        DynamicQuantizeLinear Elu Equal Erf Exp Expand EyeLike Flatten Floor Gather GatherElements
        GatherND Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual
        GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If
        InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Less LessOrEqual Log
        LogSoftmax Loop LpNormalization Max MaxRoiPool MaxUnpool Mean MeanVarianceNormalization
        MelWeightMatrix Min Mish Mod Mul Multinomial Neg NegativeLogLikelihoodLoss NonZero Not
        OneHot Optional OptionalGetElement OptionalHasElement Or PRelu Pad Pow QuantizeLinear
        RMSNormalization RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range
        Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare Relu Reshape ReverseSequence RoiAlign Round Scan
        Scatter ScatterElements ScatterND Selu SequenceAt SequenceConstruct SequenceEmpty
        SequenceErase SequenceInsert SequenceLength SequenceMap Shape Shrink Sigmoid Sign
        SimplifiedLayerNormalization Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss Softplus
        Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub Sum SwiGLU Swish Tan Tanh
        TensorScatter ThresholdedRelu Tile Transpose Trilu Unsqueeze Where Xor
        """
    ),
    "ai.onnx.ml": split_names(
        """
        ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer
        Imputer LabelEncoder Normalizer OneHotEncoder Scaler ZipMap
        """
    ),
    "ai.onnx.preview.training": frozenset(("Adagrad", "Adam", "Momentum")),
    MICROSOFT: split_names(
        """
        BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskBiasDropout BitmaskDropout
        DequantizeLinear DynamicQuantizeLinear EmbedLayerNormalization ExpandDims FastGelu
        GatherBlockQuantized GatherND Gelu GroupNorm IsAllFinite LayerNormalization MulInteger Pad
        QEmbedLayerNormalization QLinearAdd QLinearConcat QLinearGlobalAveragePool
        QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere
        QuantizeLinear QuickGelu RemovePadding RestorePadding SimplifiedLayerNormalization
        SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization Trilu Unique
        """
    ),
}

# Of their first input they read what they return, and of the next ones where it is.
READS_PART = frozenset(
    ("Gather", "GatherElements", "GatherND", "GatherBlockQuantized", "Slice")
)
# They read the sizes of their first input alone.
READS_NOTHING = frozenset(
    ("Shape", "Size", "RandomNormalLike", "RandomUniformLike", "EyeLike")
)
