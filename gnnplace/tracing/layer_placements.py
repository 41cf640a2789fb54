"""DTensor's own sharding rules for every operation of a traced training step.

DTensor registers for an ATen operation either a strategy of one mesh dimension (placements of its
results and inputs, a placeholder standing for any kind of shard) or a strategy function over
specs. Both are asked here, the latter on a mesh of one dimension that needs no processes. An
operation without either stays whole; the attention of CPUs, which has none, is split along batch
and heads as that of CUDA is.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, TupleStrategy
from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from gnnplace.sharding.captured_placements import Placed, PlacedOp, PlacedStep, PlacedValue
from gnnplace.splitting.tables.layout import PARTIAL, REPLICATED
from gnnplace.tracing.export import Traced, trace
from gnnplace.tracing.step import StepModule

UNKNOWN = -9
"""A place that the cost model has no word for."""
SPLIT_ALIKE = {  # operations that DTensor has no rule for, split along these axes of all tensors
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (0, 1),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (0, 1),
}


def placed_step(step: StepModule, name: str, parts: int) -> PlacedStep:
    """Every operation of a training step with DTensor's rules.

    Args:
        step: Model, loss and example inputs.
        name: Of the model.
        parts: Devices along a mesh dimension, for rules that ask.

    Raises:
        CaptureError: the step cannot be traced.
    """
    traced = trace(step, step.inputs(), backward=True)
    return _Reader(traced, name, parts).step()


class _Reader:
    """Reads a traced graph."""

    def __init__(self, traced: Traced, name: str, parts: int) -> None:
        self.traced, self.name = traced, name
        self.mesh = DeviceMesh("cpu", torch.arange(parts), _init_backend=False, _rank=0)
        self.values: list[PlacedValue] = []
        self.of: dict[tuple[str, int], int] = {}
        self.ops: list[PlacedOp] = []
        self.known: dict[Any, tuple[Placed, ...]] = {}

    def step(self) -> PlacedStep:
        """All of it."""
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function" and node.target is not operator.getitem:
                self._call(node)
        return PlacedStep(self.name, tuple(self.ops), tuple(self.values), self._gradients())

    def _value(self, node: fx.Node, position: int, tensor: torch.Tensor) -> int:
        self.values.append(PlacedValue(tuple(tensor.shape), tensor.dtype.itemsize))
        self.of[node.name, position] = len(self.values) - 1
        return len(self.values) - 1

    def _placeholder(self, node: fx.Node) -> None:
        tensor = node.meta["val"]
        if not isinstance(tensor, torch.Tensor):
            return
        value = self._value(node, 0, tensor)
        if self.traced.inputs[node.name].kind == "parameter":
            places = ((REPLICATED,), *((axis,) for axis in range(tensor.dim())))
            self.ops.append(PlacedOp(node.name, (value,), (), places, state=True))

    def _read(self, node: fx.Node) -> int | None:
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return self.of.get((source.name, int(str(node.args[1]))))
        return self.of.get((node.name, 0))

    def _call(self, node: fx.Node) -> None:
        made = _outputs(node)
        results = tuple(self._value(node, k, t) for k, t in made)
        read = [x for x in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(x, fx.Node)]
        reads = tuple(self._read(x) for x in read)
        if not results or any(value is None for value in reads):
            return
        rules = self._rules(node, made, [_tensor(x) for x in read])
        kept = tuple(value for value in reads if value is not None)
        self.ops.append(PlacedOp(node.name, results, kept, rules, _flops(node)))

    def _rules(
        self, node: fx.Node, made: list[tuple[int, torch.Tensor]], read: list[torch.Tensor]
    ) -> tuple[Placed, ...]:
        whole = (REPLICATED,) * (len(made) + len(read))
        shapes = [t.shape for _, t in made] + [t.shape for t in read]
        key = (node.target, str(shapes), str(_plain(node)))
        if key not in self.known:
            found = self._asked(node, made, read)
            fits = [
                r
                for r in dict.fromkeys(found)
                if len(r) == len(whole) and UNKNOWN not in r and _lie(r, shapes)
            ]
            self.known[key] = (whole, *(r for r in fits if r != whole))
        return self.known[key]

    def _asked(
        self, node: fx.Node, made: list[tuple[int, torch.Tensor]], read: list[torch.Tensor]
    ) -> list[Placed]:
        own = SPLIT_ALIKE.get(str(node.target))
        if own is not None:
            tensors = [t for _, t in made] + read
            return [tuple(a if a < t.dim() else REPLICATED for t in tensors) for a in own]
        propagator = DTensor._op_dispatcher.sharding_propagator
        positions = [position for position, _ in made]
        try:
            if node.target in propagator.op_single_dim_strategy_funcs:
                strategy = propagator.op_single_dim_strategy_funcs[node.target]
                return _single(strategy, node, positions, len(read))
            if node.target in propagator.op_strategy_funcs:
                function = propagator.op_strategy_funcs[node.target]
                return _over_specs(function, node, positions, read, self.mesh)
        except Exception:  # a rule that cannot answer for these arguments: it stays whole
            return []
        return []

    def _gradients(self) -> tuple[tuple[int, int], ...]:
        homes = {
            slot.name: self.of[name, 0]
            for name, slot in self.traced.inputs.items()
            if slot.kind == "parameter"
        }
        made = {value for op in self.ops for value in op.results if not op.state}
        pairs = []
        for slot, node in self.traced.outputs:
            value = self._read(node)
            if slot.kind == "gradient" and slot.name in homes and value in made:
                pairs.append((value, homes[slot.name]))
        return tuple((v, home) for v, home in pairs if v is not None)


def _lie(rule: Placed, shapes: Sequence[Sequence[int]]) -> bool:
    return all(place < len(shape) for place, shape in zip(rule, shapes, strict=True))


def _outputs(node: fx.Node) -> list[tuple[int, torch.Tensor]]:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return [(0, value)]
    items = value if isinstance(value, tuple | list) else ()
    return [(k, t) for k, t in enumerate(items) if isinstance(t, torch.Tensor)]


def _tensor(node: fx.Node) -> torch.Tensor:
    return node.meta["val"]


def _plain(node: fx.Node) -> Any:
    """Arguments without the names of nodes."""
    return pytree.tree_map(
        lambda x: "tensor" if isinstance(x, fx.Node) else x, (node.args, node.kwargs)
    )


def _place(placement: Any) -> int:
    if isinstance(placement, Replicate):
        return REPLICATED
    if isinstance(placement, _ShardingPlaceholder):
        return placement.dim
    if type(placement) is Shard:
        return placement.dim
    if isinstance(placement, Partial) and placement.reduce_op == "sum":
        return PARTIAL
    return UNKNOWN


def _single(strategy: Any, node: fx.Node, positions: list[int], reads: int) -> list[Placed]:
    """Rules of one mesh dimension: results, then inputs."""

    def meta(x: Any) -> Any:
        if not isinstance(x, fx.Node):
            return x
        tensor = _tensor(x)
        return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)

    args, kwargs = pytree.tree_map(meta, (node.args, node.kwargs))
    found = []
    for rule in strategy(node.target, tuple(args), dict(kwargs)):
        outputs = len(rule) - reads
        places = [_place(x) for x in rule]
        results = [places[p] for p in positions if p < outputs]
        found.append((*results, *places[outputs:]))
    return found


def _over_specs(
    function: Any, node: fx.Node, positions: list[int], read: list[torch.Tensor], mesh: DeviceMesh
) -> list[Placed]:
    """Rules that a strategy function finds for inputs in any one layout."""

    def strategy(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return OpStrategy([OpSpec(spec) for spec in _specs(_tensor(x), mesh)])
        if isinstance(x, list | tuple) and any(isinstance(y, fx.Node) for y in x):
            return TupleStrategy([strategy(y) for y in x])
        return x

    schema = OpSchema(
        node.target,  # type: ignore[arg-type]
        tuple(strategy(x) for x in node.args),
        {k: strategy(x) for k, x in node.kwargs.items()},
    )
    found = []
    for option in function(schema).strategies:
        outputs = option.output_specs
        outputs = (outputs,) if isinstance(outputs, DTensorSpec) else tuple(outputs)
        inputs = option.input_specs
        if inputs is None or len(inputs) != len(read):
            inputs = (outputs[0],) * len(read)
        results = [outputs[p] for p in positions if p < len(outputs)]
        specs = (*results, *inputs)
        found.append(tuple(UNKNOWN if s is None else _place(s.placements[0]) for s in specs))
    return found


def _specs(tensor: torch.Tensor, mesh: DeviceMesh) -> list[DTensorSpec]:
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    whole = [Replicate(), *(Shard(axis) for axis in range(tensor.dim())), Partial()]
    fits = [p for p in whole if not isinstance(p, Shard) or tensor.shape[p.dim] % mesh.size() == 0]
    return [DTensorSpec(mesh, (p,), tensor_meta=meta) for p in fits]


def _flops(node: fx.Node) -> float:
    packet = getattr(node.target, "overloadpacket", None)
    if packet not in flop_registry:
        return 0.0
    args, kwargs = pytree.tree_map(
        lambda x: _tensor(x) if isinstance(x, fx.Node) else x, (node.args, node.kwargs)
    )
    return float(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
