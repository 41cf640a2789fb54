"""A plan on a user's model: parameters become DTensors, the forward pass runs in parts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError, MismatchError
from gnnplace.sharding.captured.calls import CallGraph
from gnnplace.sharding.captured.layout import Mesh, parts_of
from gnnplace.sharding.captured.recording import OutputModule, record_calls
from gnnplace.sharding.rules.registry import rules_of
from gnnplace.sharding.rules.rule import Rule
from gnnplace.sharding.run.move import flattened, placements
from gnnplace.sharding.run.plan import Loss, ShardPlan
from gnnplace.sharding.run.runner import ShardRunner, stages
from gnnplace.tracing.fingerprint import MEMORY, Fingerprint, reading
from gnnplace.tracing.step import StepModule


def apply_plan(
    plan: ShardPlan, model: nn.Module, mesh: DeviceMesh | None, loss: Loss | None
) -> nn.Module:
    """Splits a model in place: see ``ShardPlan.apply``."""
    if any(isinstance(p.data, DTensor) for p in model.parameters()):
        raise InputError("apply: the model's parameters are DTensors already; apply a plan once")
    plan.check(model)
    if plan.with_loss and loss is None:
        raise InputError(f"plan of {plan.model!r}: it has a loss; apply(model, loss=...) needs it")
    devices = device_mesh(plan.mesh, mesh, _device_type(model))
    distribute(plan, model, devices)
    forward = ShardedForward(plan, model, devices, loss if plan.with_loss else None)
    model.forward = forward  # type: ignore[method-assign, assignment]
    return model


def _device_type(model: nn.Module) -> str:
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device.type


def device_mesh(shape: Mesh, mesh: DeviceMesh | None, device_type: str) -> DeviceMesh:
    """The mesh of a plan: the one given, or one over all processes.

    Raises:
        InputError: there is no process group, or one of another size.
    """
    if mesh is not None:
        if tuple(mesh.shape) != shape:
            raise InputError(f"mesh {tuple(mesh.shape)}: the plan is for one of {shape}")
        return mesh
    count = int(torch.Size(shape).numel())
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise InputError(
                f"plan over {count} devices: there is no process group; start the script with "
                f"torchrun --nproc-per-node {count}"
            )
        dist.init_process_group()
    if dist.get_world_size() != count:
        raise InputError(
            f"plan over {count} devices: there are {dist.get_world_size()} processes; make a plan "
            "for as many, or start as many"
        )
    names = tuple(f"mesh{i}" for i in range(len(shape)))
    return flattened(init_device_mesh(device_type, shape, mesh_dim_names=names))


def distribute(plan: ShardPlan, model: nn.Module, mesh: DeviceMesh) -> None:
    """Makes DTensors of all parameters, with the first process's values."""
    names = {id(p): name for name, p in model.named_parameters()}
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                home = plan.parameters[names[id(parameter)]].home
                whole = distribute_tensor(parameter.detach(), mesh, placements(home))
                made[id(parameter)] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
            module._parameters[key] = made[id(parameter)]


@dataclass(eq=False)
class ShardedForward:
    """The forward pass of a split model.

    It is traced anew for inputs of other shapes, when the model goes from training to evaluation,
    and when anything else changed that its code reads; the strategy stays.
    """

    plan: ShardPlan
    model: nn.Module
    mesh: DeviceMesh
    loss: Loss | None
    runners: dict[Any, tuple[ShardRunner, Fingerprint]] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, whole on every device.

        Raises:
            MismatchError: this is not the model that the plan was made for.
            InputError: a layer's inputs cannot be cut into equal parts.
        """
        inputs = self._bound(args, kwargs)
        leaves, spec = pytree.tree_flatten(inputs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        modes = tuple(module.training for module in self.model.modules())
        key = (tuple(_key(leaf) for leaf in leaves), str(spec), modes)
        known = self.runners.get(key)
        if known is None or any(kind != MEMORY for kind, _ in known[1].changes()):
            with reading(self.model) as read:
                runner = self._trace(inputs)
            known = self.runners[key] = runner, Fingerprint(self.model, None, read)
        return known[0].run(tensors)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The inputs: all by position, or all by keyword."""
        if not kwargs or not args:
            return kwargs or args
        forward = inspect.signature(type(self.model).forward)
        bound = dict(forward.bind(self.model, *args, **kwargs).arguments)
        bound.pop(next(iter(forward.parameters)))
        return bound

    def _trace(self, inputs: Any) -> ShardRunner:
        with self._own_forward():
            step: StepModule
            if self.loss is not None:
                step = StepModule(self.model, self.loss, inputs)
            else:
                step = OutputModule(self.model, None, inputs)
            graph = record_calls(step, self.plan.model, zeros=True)
        rules = rules_of(graph)
        check_layers(self.plan, graph, rules)
        self._draw_alike(graph)
        split = [layer.split for layer in self.plan.layers]
        homes = {name: p.home for name, p in self.plan.parameters.items()}
        return ShardRunner(
            graph, stages(graph, rules, split, self.mesh), self.mesh, homes, self.model
        )

    @contextmanager
    def _own_forward(self) -> Iterator[None]:
        mine = self.model.__dict__.pop("forward")
        try:
            yield
        finally:
            self.model.__dict__["forward"] = mine

    def _draw_alike(self, graph: CallGraph) -> None:
        """Random numbers follow the first process's: masks of parts are parts of one mask."""
        if graph.random:
            accelerated = self.mesh.device_type == "cuda"
            state = torch.cuda.get_rng_state() if accelerated else torch.get_rng_state()
            shared: list[torch.Tensor] = [state]
            dist.broadcast_object_list(shared, src=0)
            (torch.cuda.set_rng_state if accelerated else torch.set_rng_state)(shared[0])


def _key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.requires_grad
    return repr(leaf)


def check_layers(plan: ShardPlan, graph: CallGraph, rules: tuple[Rule, ...]) -> None:
    """Whether a traced model has a plan's layers, and they can be cut.

    Raises:
        MismatchError: names the first layer that differs.
        InputError: names the layer that cannot be cut into equal parts.
    """
    for i, (call, layer) in enumerate(zip(graph.calls, plan.layers, strict=False)):
        if (call.name, call.kind) != (layer.name, layer.function):
            raise MismatchError(
                f"plan of {plan.model!r}: layer {i} is {call.name!r} ({call.kind}), in the plan "
                f"{layer.name!r} ({layer.function}); make a plan for this model"
            )
    if len(graph.calls) != len(plan.layers):
        raise MismatchError(
            f"plan of {plan.model!r}: the model has {len(graph.calls)} layers, the plan "
            f"{len(plan.layers)}; make a plan for this model"
        )
    for layer, rule in zip(plan.layers, rules, strict=True):
        for label, parts in parts_of(layer.split, plan.mesh).items():
            extent = rule.extents.get(label, 1)
            if extent % parts:
                raise InputError(
                    f"layer {layer.name!r}: {layer.words}: {extent} cannot be cut into {parts} "
                    "equal parts; make a plan for inputs of this shape"
                )
