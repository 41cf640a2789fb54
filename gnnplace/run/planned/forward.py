"""A plan of one stage as a model's own forward pass: whole inputs in, whole outputs out.

Its parameters become DTensors that any optimizer takes, and any loss may follow. Each pass computes
with leaves of its own, a part of a parameter each, as a training step of the plan does. When
autograd is over, gradients that are sums over devices are added up, many in one collective (as
DistributedDataParallel does: Li et al., 2020, arXiv 2006.15704), and land in `grad` of parameters.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from gnnplace.errors import CaptureError, InputError
from gnnplace.plans import (
    PlanFile,
    check_placements,
    check_stages,
    find_cuts,
    make_home_layout,
    make_plan_inputs,
)
from gnnplace.run.planned.layouts import Layouts, make_layouts
from gnnplace.run.planned.parameters import LocalParameter, Parameters
from gnnplace.run.planned.passes import StageCode
from gnnplace.run.planned.seats import Seat, Seats, check_processes, make_seats
from gnnplace.run.planned.stages import StageCalls, make_stage_calls
from gnnplace.run.planned.whole import refuse_replaced_parameters
from gnnplace.run.split import (
    broadcast_from_first,
    dtensor_placements,
    flatten_mesh,
    place_calls,
)
from gnnplace.sharding import LayerGraph, Layout, layer_graph
from gnnplace.torch_names import call_after_backward, pytree
from gnnplace.tracing import (
    MEMORY,
    CallGraph,
    CallRef,
    Fingerprint,
    note_attribute_reads,
    refuse_meta,
    register_types,
)

Loss = Callable[..., torch.Tensor]


def split_model(
    file: PlanFile, model: nn.Module, mesh: DeviceMesh | None, loss: Loss | None
) -> nn.Module:
    """Split a model over a mesh, in place: see `ShardPlan.apply`."""
    if any(isinstance(p.data, DTensor) for p in model.parameters()):
        raise InputError(
            "apply: the model's parameters are DTensors already; apply a plan once"
        )
    refuse_meta(model, (), "apply")
    kind = next((p.device.type for p in model.parameters()), "cpu")
    seat = _seat(make_seats(file), mesh, kind)
    forward = _Forward(file, model, seat, loss, model.__dict__.get("forward"))
    if file.inputs:
        try:
            # The first pass proves it.
            forward.layers(make_plan_inputs(file), proven=False)
        except CaptureError:
            pass  # a model of another type than it was planned in: its first pass is checked
        except InputError as error:
            if loss:
                needed = ""
            else:
                needed = "; where the plan has a loss, apply(model, loss=...) needs it"
            raise type(error)(f"{error}{needed}") from None
    forward.distribute()
    model.forward = forward  # type: ignore[method-assign, assignment]
    return model


def _seat(seats: Seats, mesh: DeviceMesh | None, kind: str) -> Seat:
    """Return this process's seat on a mesh, or on one over all processes.

    Raises:
        InputError: there is no process group, or one of another size.
    """
    axes = seats.axes[0]
    if mesh is None:
        mesh = make_mesh_here(axes, kind)
    elif mesh.ndim > len(axes):
        dims = [dim for dim in range(mesh.ndim) if mesh.size(dim) > 1] or [0]
        groups = [mesh.get_group(dim) for dim in dims]
        mesh = DeviceMesh.from_group(
            groups if len(dims) > 1 else groups[0],
            kind,
            mesh=mesh.mesh.squeeze() if len(dims) > 1 else None,
        )
    if tuple(mesh.shape) != axes:
        raise InputError(f"mesh {tuple(mesh.shape)}: the plan is for one of {axes}")
    place = 0
    for dim in range(mesh.ndim):
        place = place * mesh.size(dim) + mesh.get_local_rank(dim)
    alone = dict.fromkeys(itertools.product((False, True), repeat=len(axes)))
    return Seat(
        seats=seats,
        process=place,
        rank=0,
        replica=0,
        shard=place,
        device=torch.device(kind),
        mesh=mesh,
        owners=alone,
    )


def make_mesh_here(shape: tuple[int, ...], kind: str) -> DeviceMesh:
    """Make a mesh over all processes, whose group is started if torchrun started them.

    Raises:
        InputError: there is no process group, or one of another size.
    """
    count = int(torch.Size(shape).numel())
    if not dist.is_initialized() and "RANK" in os.environ:
        dist.init_process_group()
    check_processes(count)
    names = tuple(f"mesh{i}" for i in range(len(shape)))
    return flatten_mesh(init_device_mesh(kind, shape, mesh_dim_names=names))


@dataclass(frozen=True, eq=False)
class _Traced:
    """The forward pass for inputs of some shapes.

    Attributes:
        code: what runs.
        graph: the calls, which say what comes out.
        read: what they take for granted of the model.
        parameters: DTensors of the leaves, by name.
    """

    code: StageCode
    graph: CallGraph
    read: Fingerprint
    parameters: dict[str, nn.Parameter]

    def run(self, inputs: list[torch.Tensor]) -> Any:
        """Return the model's output, whole on every device."""
        for name, parameter in self.parameters.items():
            local = _local(parameter)
            leaf = self.code.parameters.held[name].leaf
            if leaf.data_ptr() != local.data_ptr():
                leaf.data = local
        grad = torch.is_grad_enabled()
        values = self.code.forward((), inputs, None, (0, 0, 0), grad=grad)
        outputs = [_Whole.apply(x) if x.requires_grad else x for x in values]
        by_value = dict(zip(self.graph.outputs, outputs, strict=True))

        def output(leaf: object) -> object:
            if isinstance(leaf, CallRef):
                return by_value[leaf.value]
            return leaf

        return pytree.tree_map(output, self.graph.output)


@dataclass(eq=False)
class _Forward:
    """The forward pass of a split model.

    It is traced anew for inputs of other shapes, when the model goes from training to evaluation,
    and when anything else changed that its code reads; the strategy stays. `torch.compile` leaves
    it as it is.

    Attributes:
        script_forward: The forward pass that the script gave this model and not its class, if any.
    """

    file: PlanFile
    model: nn.Module
    seat: Seat
    loss: Loss | None
    script_forward: Callable[..., Any] | None = None
    traced: dict[Any, _Traced] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        """Return the forward pass of a copy of the model, which is traced anew."""
        model, script_forward = copy.deepcopy((self.model, self.script_forward), memo)
        return _Forward(self.file, model, self.seat, self.loss, script_forward)

    @property
    def mesh(self) -> DeviceMesh:
        """Return the mesh of devices."""
        assert self.seat.mesh is not None
        return self.seat.mesh

    def distribute(self) -> None:
        """Make DTensors of all parameters, with the first process's values."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        replacements: dict[int, nn.Parameter] = {}
        for module in self.model.modules():
            for key, parameter in list(module._parameters.items()):
                if parameter is None:
                    continue
                if id(parameter) not in replacements:
                    home = dtensor_placements(self._home(names[id(parameter)]))
                    distributed = distribute_tensor(parameter.detach(), self.mesh, home)
                    learns = parameter.requires_grad
                    replacements[id(parameter)] = nn.Parameter(
                        distributed, requires_grad=learns
                    )
                    if learns:
                        refuse_replaced_parameters(parameter)
                module._parameters[key] = replacements[id(parameter)]

    def _home(self, name: str) -> Layout:
        """Return the layout of a parameter over the shards."""
        return make_home_layout(self.file.stages[0], name)

    @torch.compiler.disable
    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the model's output, whole on every device.

        Raises:
            MismatchError: this is not the model that the plan was made for, or a layer's inputs
                cannot be cut into equal parts.
        """
        inputs = self._bound(args, kwargs)
        register_types(inputs)
        leaves, spec = pytree.tree_flatten(inputs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        modes = tuple(module.training for module in self.model.modules())
        key = (tuple(_key(leaf) for leaf in leaves), str(spec), modes)
        traced = self.traced.get(key)
        if traced is None or any(kind != MEMORY for kind, _ in traced.read.changes()):
            traced = self.traced[key] = self._trace(inputs)
        return traced.run(tensors)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Return the inputs, all by position or all by keyword."""
        if not kwargs or not args:
            return kwargs or args
        forward = inspect.signature(type(self.model).forward)
        bound = dict(forward.bind(self.model, *args, **kwargs).arguments)
        bound.pop(next(iter(forward.parameters)))
        return bound

    def layers(self, inputs: object, *, proven: bool = True) -> LayerGraph:
        """Record the model's calls on inputs.

        Raises:
            MismatchError: they are not the plan's, or cannot be split as it says.
        """
        with self._call_own_forward():
            layers = layer_graph(
                self.model,
                inputs,
                self.loss,
                self.file.model,
                zeros=True,
                proven=proven,
            )
        check_stages(find_cuts(layers.calls, layers.rules).segments, self.file.stages)
        check_placements(layers.calls, layers.rules, self.file.stages)
        return layers

    def _trace(self, inputs: object) -> _Traced:
        with note_attribute_reads(self.model) as read:
            layers = self.layers(inputs)
        graph = layers.calls
        entries = self.file.stages
        (piece,) = make_stage_calls(graph, [entries[0].members], [[]])
        layouts = make_layouts(layers, [piece], entries)
        self._share_generator_state(graph)
        parameters = dict(self.model.named_parameters())
        code = StageCode(
            graph=graph,
            # The generator's state is shared, so that draws are not seeded one by one.
            piece=replace(piece, draws={}),
            placed=place_calls(graph, layers.rules, layouts.split, self.mesh),
            model=self.model,
            parameters=self._make_leaves(piece, layouts, parameters),
            converted=layouts.converted,
        )
        return _Traced(
            code=code,
            graph=graph,
            read=Fingerprint(self.model, None, read, self.loss),
            parameters={name: parameters[name] for name in piece.parameters},
        )

    def _make_leaves(
        self, piece: StageCalls, layouts: Layouts, parameters: dict[str, nn.Parameter]
    ) -> Parameters:
        """Make leaves of the parameters that the pass reads; backward hands their gradients on."""
        store = Parameters(
            self.seat, 0, {}, {n: p.shape for n, p in parameters.items()}
        )
        # The first gradient that arrives asks for one ``finish`` once the whole backward is over:
        # sums over processes need all gradients, in one order everywhere.
        waiting = [False]

        def arrived(leaf: torch.Tensor) -> None:
            if not waiting[0]:
                waiting[0] = True
                call_after_backward(finish)

        @torch.no_grad()
        def finish() -> None:
            waiting[0] = False
            store.finish()
            for name, local in store.held.items():
                _give(parameters[name], local)

        for name in piece.parameters:
            parameter = parameters[name]
            home = self._home(name)
            summed = layouts.summed.get(name, (False,) * len(home))
            leaf = nn.Parameter(
                _local(parameter), requires_grad=parameter.requires_grad
            )
            if leaf.requires_grad:
                leaf.register_post_accumulate_grad_hook(arrived)
            store.held[name] = LocalParameter(
                name=name,
                leaf=leaf,
                part=leaf,
                home=home,
                summed=summed,
                ranks=(0,),
                shape=leaf.shape,
                count=1,
                index=0,
                owners=None,
            )
        return store

    @contextmanager
    def _call_own_forward(self) -> Iterator[None]:
        split_forward = self.model.__dict__.pop("forward", None)
        if self.script_forward is not None:
            self.model.__dict__["forward"] = self.script_forward
        try:
            yield
        finally:
            self.model.__dict__.pop("forward", None)
            if split_forward is not None:
                self.model.__dict__["forward"] = split_forward

    def _share_generator_state(self, graph: CallGraph) -> None:
        """Set the generator to the first process's state: masks of shards are parts of one mask."""
        if graph.random:
            accelerated = self.mesh.device_type == "cuda"
            if accelerated:
                state = torch.cuda.get_rng_state()
            else:
                state = torch.get_rng_state()
            state = state.to(self.mesh.device_type)
            broadcast_from_first(state, self.mesh)
            (torch.cuda.set_rng_state if accelerated else torch.set_rng_state)(
                state.cpu()
            )


class _Whole(torch.autograd.Function):
    """A model's output, whose gradient may be a DTensor because of terms of parameters."""

    @staticmethod
    def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
        """Return the value."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: object, *given: object) -> object:
        """Return the gradient as a plain tensor."""
        if isinstance(given[0], DTensor):
            return given[0].full_tensor()
        return given[0]


def _local(parameter: nn.Parameter) -> torch.Tensor:
    with torch.no_grad():  # without autograd a DTensor hands its part out as it is
        local: torch.Tensor = parameter.to_local()  # type: ignore[attr-defined]
        return local.detach()


def _give(parameter: nn.Parameter, local: LocalParameter) -> None:
    """Add a leaf's gradient to its parameter's."""
    gradient = local.leaf.grad
    local.leaf.grad = None
    if gradient is None:
        return
    if parameter.grad is not None:
        assert isinstance(parameter.grad, DTensor)
        _match_layout(parameter)
        parameter.grad.to_local().add_(gradient)
        return
    data = parameter.data
    assert isinstance(data, DTensor)
    parameter.grad = DTensor.from_local(
        gradient.contiguous(),
        data.device_mesh,
        data.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _match_layout(parameter: nn.Parameter) -> None:
    """Redistribute a gradient that other terms of the loss made to its parameter's layout."""
    gradient = parameter.grad
    data = parameter.data
    assert isinstance(gradient, DTensor)
    assert isinstance(data, DTensor)
    if gradient.placements != data.placements:
        parameter.grad = gradient.redistribute(placements=data.placements)


def _key(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.requires_grad
    return repr(leaf)
