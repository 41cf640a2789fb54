"""The calls of torch functions that a model's forward pass makes, in order: its layers.

The forward pass runs once, on fake tensors if possible, under a `TorchFunctionMode`. The mode sees
`linear`, `scaled_dot_product_attention` or `cross_entropy` as one call each, in modules and between
them. Plain Python numbers become constants, as in every trace; the result of an in-place change
becomes a value of its own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gnnplace.errors import CaptureError
from gnnplace.torch_names import (
    FakeTensor,
    FakeTensorMode,
    is_any_autocast_enabled,
    is_functorch_wrapped_tensor,
    pytree,
    top_saved_tensors_default_hooks,
)
from gnnplace.tracing.aten import check_layouts, silence_warnings
from gnnplace.tracing.calls import (
    BUFFER,
    CALL,
    CONSTANT,
    INPUT,
    PARAMETER,
    CallGraph,
    CallRef,
    LayerCall,
    LayerValue,
    as_one_call,
    function_name,
    user_functions,
)
from gnnplace.tracing.fakes import make_fake_mode, without_numbers
from gnnplace.tracing.guards import (
    SIZED,
    UNKNOWN,
    Attributes,
    Numbering,
    Proof,
    Replay,
    as_eager,
    as_numbers,
    blame,
    other_generators,
    prove,
    prove_apart,
)
from gnnplace.tracing.recording.repeated import (
    ModuleVisits,
    OmittedLayer,
    Visit,
    find_omitted_layers,
    find_random_calls,
    flatten_leaves,
)
from gnnplace.tracing.step import StepModule, check_loss, check_scalar
from gnnplace.tracing.tensors import find_tensors, get_storage_key

Function = Callable[..., Any]
PREFIX = "model."
SAVED_HOOKS = top_saved_tensors_default_hooks
ASIDE = (
    "view",
    "reshape",
    "flatten",
    "transpose",
    "contiguous",
    "to",
    "add",
    "getitem",
    "unsqueeze",
)
"""Functions that a layer calls beside the one that it is named after."""
NORMS = {
    "batch_norm": (5, "training", False),
    "instance_norm": (5, "use_input_stats", True),
}
"""Norms that keep running statistics: the argument by which they do, and its default."""


class OutputModule(StepModule):
    """A model without a loss: what it returns, as it is."""

    def forward(self, *tensors: torch.Tensor) -> object:
        """Return the model's output."""
        remaining = iter(tensors)
        leaves = [
            next(remaining) if isinstance(x, torch.Tensor) else x for x in self._leaves
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self.model(*args, **kwargs)


def record_calls(
    step: StepModule, name: str, *, zeros: bool = False, proven: bool = True
) -> CallGraph:
    """Run a forward pass and record its calls.

    Args:
        step: Model, loss (or an `OutputModule`) and example inputs; the model is left as it was.
        name: The name of the model.
        zeros: Where the model must run on real tensors, stand zeros in for its parameters.
        proven: Refuse a step that is more than its calls; else nothing is known of draws.

    Raises:
        CaptureError: the forward pass failed, or does what cannot be split; names the module.
    """
    check_layouts(step)
    check_loss(step.loss, step.model)
    with (
        torch.random.fork_rng(),
        other_generators(),
        without_cache(),
        as_one_call(step),
        warnings.catch_warnings(),
        as_eager() as unchecked,
        silence_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            stand = _fake_tensors(step)
            graph, layers = _record(step, name, stand)
        except CaptureError:
            raise
        except Exception as fake_error:
            # For example an op that has no kernel without numbers.
            if type(fake_error).__name__ in UNKNOWN:
                raise CaptureError(blame(fake_error, step)) from fake_error
            fake = any(isinstance(p, FakeTensor) for p in step.parameters())
            try:
                if fake:
                    raise
                stand = _real_tensors(step, zeros)
                graph, layers = _record(step, name, stand)
            except CaptureError:
                raise
            except Exception as error:
                raise CaptureError(blame(error, step)) from error
        graph = replace(graph, notices=tuple(dict.fromkeys(unchecked)))
        if not proven:
            return graph
        proof = _prove_recording(
            step=step,
            graph=graph,
            layers=layers,
            name=name,
            mode=stand.mode,
        )
    changed = {
        name: graph.changed.get(name) or graph.readers(name) for name in proof.changed
    }
    return replace(
        graph,
        random=proof.random,
        statistics=proof.statistics,
        changed={**graph.changed, **changed},
    )


def _prove_recording(
    step: StepModule,
    graph: CallGraph,
    layers: dict[str, OmittedLayer],
    name: str,
    mode: FakeTensorMode | None,
) -> Proof:
    """Return what a proof finds, by two layers of each kind where that will do."""
    if layers and mode is not None:
        short = _replay(graph, layers.values())
        stands = {path: layer.stand for path, layer in layers.items()}
        proof = prove_apart(step, short, name, mode, stands)
        if proof is not None:
            return replace(
                proof, random=find_random_calls(proof.random, layers.values())
            )
    trains = not isinstance(step, OutputModule)
    return prove(step, _replay(graph), name, mode, trains=trains)


@contextmanager
def without_cache() -> Iterator[None]:
    """Have models of transformers keep no keys and values of attention for a next word.

    A pass that trains reads none of what ``config.use_cache`` has them keep. The cache itself is
    there, for masks depend on whether there is one: without it position ids say what is packed.
    """
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None:
        yield
        return
    update = caches.DynamicCache.update

    def return_unchanged(
        cache: Any,
        keys: object,
        values: object,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> object:
        if cache.get_seq_length(layer_idx):
            return update(cache, keys, values, layer_idx, *args, **kwargs)
        return keys, values

    with patch.object(caches.DynamicCache, "update", return_unchanged):
        yield


def _replay(graph: CallGraph, layers: Iterable[OmittedLayer] = ()) -> Replay:
    """Return what runs a graph's calls as a plan on one device does, with ``layers`` left out."""
    omitted = {layer.first: layer for layer in layers}

    def run(
        numbering: Numbering,
        inputs: Sequence[torch.Tensor],
        state: Mapping[str, torch.Tensor],
    ) -> object:
        values: dict[int, torch.Tensor] = dict(graph.constants)
        for i, value in enumerate(graph.values):
            if value.source in (PARAMETER, BUFFER) and value.name in state:
                values[i] = state[value.name]
            elif value.source == INPUT:
                values[i] = inputs[int(value.name)]
        position = 0
        while position < len(graph.calls):
            if layer := omitted.get(position):
                results: Any = layer.stand.tensors([values[v] for v in layer.reads])
                values.update(zip(layer.results, results, strict=True))
                position = layer.last
                continue
            numbering.label = position
            call = graph.calls[position]
            values.update(zip(call.results, call.made(values.__getitem__), strict=True))
            position += 1
        return pytree.tree_map(
            lambda x: values[x.value] if isinstance(x, CallRef) else x, graph.output
        )

    return run


@dataclass(frozen=True)
class _Stand:
    """Tensors that a step is recorded on.

    Attributes:
        state: parameters and buffers of the model, by name.
        inputs: the inputs of the step.
        mode: the mode to run under, for tensors without numbers.
    """

    state: dict[str, torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    mode: FakeTensorMode | None


def _fake_tensors(step: StepModule) -> _Stand:
    """Return tensors without numbers in place of the step's; those that are fake already stay."""
    tensors = dict(_name_state(step))
    mode = None
    for tensor in (*tensors.values(), *step.inputs()):
        if isinstance(tensor, FakeTensor):
            mode = tensor.fake_mode
            break
    if mode is None:
        mode = make_fake_mode()

    def fake(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        with mode:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        return empty.requires_grad_(tensor.requires_grad)

    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, FakeTensor):
            state[name] = tensor
        else:
            state[name] = fake(tensor, tensor.device)
    inputs = [fake(tensor, tensor.device) for tensor in step.inputs()]
    return _Stand(state, tuple(inputs), mode)


def _real_tensors(step: StepModule, zeros: bool) -> _Stand:
    """Return clones of the step's tensors; with ``zeros``, zeros in place of the model's."""

    def real(tensor: torch.Tensor, zeros: bool) -> torch.Tensor:
        if not zeros:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)
        empty = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return empty.requires_grad_(tensor.requires_grad)

    state: dict[str, torch.Tensor] = {}
    for name, tensor in _name_state(step):
        state[name] = real(tensor, zeros)
    inputs = [real(tensor, False) for tensor in step.inputs()]
    return _Stand(state, tuple(inputs), None)


def _name_state(step: StepModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Return parameters and buffers of the model; what a loss has of its own is a constant."""
    for named in (step.named_parameters(), step.named_buffers()):
        yield from ((name, tensor) for name, tensor in named if name.startswith(PREFIX))


def _record(
    step: StepModule, name: str, stand: _Stand
) -> tuple[CallGraph, dict[str, OmittedLayer]]:
    """Return the calls of a step, and the layers that the proof may leave out."""
    visits = ModuleVisits(step)
    parameters = {n for n, _ in step.named_parameters()}
    recorder = _Recorder(
        (t for n, t in stand.state.items() if n not in parameters), visits
    )
    attributes = Attributes(step)
    for key, tensor in stand.state.items():
        if key in parameters:
            source = PARAMETER
        else:
            source = BUFFER
        recorder.enter(tensor, source, key.removeprefix(PREFIX))
    for position, tensor in enumerate(stand.inputs):
        recorder.enter(tensor, INPUT, str(position))
    with ExitStack() as stack:
        stack.enter_context(without_numbers(stand.mode))
        stack.enter_context(_paths(step, recorder))
        stack.enter_context(attributes.restored())
        stack.enter_context(_restore_tensors(step))
        stack.enter_context(visits.noting())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(user_functions())
        with recorder:
            output = torch.func.functional_call(step, stand.state, stand.inputs)
    if not isinstance(step, OutputModule):
        check_scalar(output)
        if not output.requires_grad:
            raise CaptureError(
                f"{name}: nothing learns: the loss follows from no parameter that has a gradient; "
                "let one require it, and return a loss that can be differentiated"
            )
    graph, positions = recorder.graph(name, output)
    may_omit = visits.stateless and stand.mode is not None and not attributes.changed
    return graph, find_omitted_layers(graph, visits, positions) if may_omit else {}


@contextmanager
def _restore_tensors(step: StepModule) -> Iterator[None]:
    """Give every module its parameters and buffers back.

    `torch.func.functional_call` (torch 2.13) leaves the stand-ins in a module that stands at
    several places of a model: it swaps tensors once for each place, and back in the same order.
    """
    saved = []
    for module in step.modules():
        saved.append((module, dict(module._parameters), dict(module._buffers)))
    try:
        yield
    finally:
        for module, parameters, buffers in saved:
            module._parameters.update(parameters)
            module._buffers.update(buffers)


@contextmanager
def _paths(step: StepModule, recorder: _Recorder) -> Iterator[None]:
    """Have the recorder know which module is running."""
    handles = []
    for path, module in step.named_modules():
        leaf = not any(True for _ in module.children())
        entering = _entering(recorder, path, leaf)
        handles.append(module.register_forward_pre_hook(entering, with_kwargs=True))
        handles.append(
            module.register_forward_hook(_leaving(recorder, path), always_call=True)
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(recorder: _Recorder, path: str, leaf: bool) -> Callable[..., None]:
    """Return a hook before a module's forward pass, which puts the module on the recorder's
    stack.
    """
    name = path.removeprefix(PREFIX.rstrip(".")).lstrip(".")

    def enter(module: nn.Module, args: object, kwargs: object) -> None:
        recorder.stack.append((name, leaf))
        recorder.running.append(path)
        if (visited := recorder.visits.of.get(path)) is not None:
            leaves, structure = flatten_leaves(
                (args, kwargs), recorder.parse_set_values
            )
            visited.append(
                Visit(
                    first=len(recorder.calls),
                    arguments=leaves,
                    arguments_structure=structure,
                )
            )

    return enter


def _leaving(recorder: _Recorder, path: str) -> Callable[..., None]:
    """Return a hook after a module's forward pass, which takes the module off the
    recorder's stack.
    """

    def leave(module: nn.Module, args: object, output: object) -> None:
        recorder.stack.pop()
        recorder.running.pop()
        if visited := recorder.visits.of.get(path):
            visited[-1].last = len(recorder.calls)
            visited[-1].results, visited[-1].results_structure = flatten_leaves(
                output, recorder.parse_set_values
            )

    return leave


class _Recorder(TorchFunctionMode):
    """Notes every call that returns or changes a tensor; `buffers` keep what is done to them."""

    def __init__(self, buffers: Iterable[torch.Tensor], visits: ModuleVisits) -> None:
        super().__init__()
        self.visits = visits
        self.running: list[str] = []
        self._buffers = {get_storage_key(x) for x in buffers}
        self._names_of: dict[Any, list[str]] = {}
        self._changing: dict[str, list[int]] = {}
        self._lasting: set[int] = set()
        self.stack: list[tuple[str, bool]] = []
        self.calls: list[LayerCall] = []
        self.values: list[LayerValue] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.parse_set_values: dict[int, int] = {}
        self._alive: dict[int, list[tuple[torch.Tensor, int]]] = {}  # by their memory
        self._stale: dict[int, str] = {}
        self._names: dict[str, int] = {}
        self._parts: dict[int, tuple[torch.Tensor, Any]] = {}

    def enter(self, tensor: torch.Tensor, source: str, name: str = "") -> int:
        """Give a tensor object a new value; return the value's number."""
        shape = tuple(tensor.shape)
        value = LayerValue(
            shape=shape,
            dtype=tensor.dtype,
            gradient=tensor.requires_grad,
            source=source,
            name=name,
        )
        self.values.append(value)
        index = len(self.values) - 1
        if source == BUFFER:
            self._names_of.setdefault(get_storage_key(tensor), []).append(name)
        self.parse_set_values[id(tensor)] = index
        try:
            memory = get_storage_key(tensor)
        except RuntimeError:  # what torch.func makes has none
            memory = id(tensor)
        self._alive.setdefault(memory, []).append((tensor, index))
        return index

    def __torch_function__(
        self,
        func: Function,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        read = find_tensors((args, kwargs))
        if len(read) > 1 and function_name(func) in SIZED:
            args = (args[0], *as_numbers(args[1:]))
            kwargs = as_numbers(kwargs)
            read = find_tensors((args, kwargs))
        versions = [x._version for x in read]
        result = func(*args, **kwargs)
        changed = [x for x, v in zip(read, versions, strict=True) if x._version != v]
        results = find_tensors(result)
        if (
            func is torch.Tensor.__getitem__
            and results
            and get_storage_key(results[0]) == get_storage_key(read[0])
        ):
            self._parts[id(results[0])] = read[0], args[1]
        if (
            func is torch.Tensor.copy_
            and (part := self._parts.get(id(args[0]))) is not None
        ):
            # `base[index].copy_(x)` is `base[index] = x`: the same ops, on what is read later
            func = torch.Tensor.__setitem__
            args = (*part, args[1])
            results = []
            read = find_tensors(args)
            changed = [part[0]]
        if results or changed:
            self._note(
                func=func,
                args=args,
                kwargs=kwargs,
                read=read,
                returned=results,
                changed=changed,
            )
        else:
            self.visits.note_query(func, self.running)
        return result

    def _note(
        self,
        func: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: list[torch.Tensor],
        returned: list[torch.Tensor],
        changed: list[torch.Tensor],
    ) -> None:
        """Record a call that returns or changes tensors.

        Args:
            func: The function of torch that was called.
            args: Its arguments.
            kwargs: Its arguments by name.
            read: Tensors among its arguments.
            returned: Tensors among its results.
            changed: Tensors that it changed in place.
        """
        name = self._name(func)
        reads = tuple(self._read(x, name) for x in read)
        ref_args, ref_kwargs = pytree.tree_map(self._ref, (tuple(args), dict(kwargs)))
        changes = not returned
        results = changed[:1] if changes else returned
        inplace = any(get_storage_key(x) not in self._buffers for x in changed)
        if any(get_storage_key(x) in self._buffers for x in changed):
            self._lasting.add(len(self.calls))
            self.visits.irregular.update(self.running)
        if is_any_autocast_enabled() or SAVED_HOOKS(True):
            self.visits.irregular.update(self.running)
        statistics = running_statistics(func, args, kwargs)
        for storage in {get_storage_key(x) for x in (*changed, *statistics)}:
            for buffer in self._names_of.get(storage, ()):
                self._changing.setdefault(buffer, []).append(len(self.calls))
        for tensor in changed:
            self._spoil(tensor, name)
        call = LayerCall(
            name=name,
            function=func,
            args=ref_args,
            kwargs=ref_kwargs,
            reads=reads,
            results=tuple(self.enter(x, CALL) for x in results),
            module=self.stack[-1][0] if self.stack else "",
            gradient=torch.is_grad_enabled(),
            changes=changes,
            inplace=inplace,
        )
        self.calls.append(call)

    def _ref(self, leaf: object) -> object:
        """Return a reference to the value of a tensor; anything else as it is."""
        if isinstance(leaf, torch.Tensor):
            return CallRef(self.parse_set_values[id(leaf)])
        return leaf

    def _read(self, tensor: torch.Tensor, name: str) -> int:
        """Return the value of a tensor that a call reads; a tensor from outside becomes a constant.

        Raises:
            CaptureError: another view of the tensor was changed in place.
        """
        if id(tensor) not in self.parse_set_values:
            self.constants[self.enter(tensor, CONSTANT)] = tensor
        index = self.parse_set_values[id(tensor)]
        if index in self._stale:
            raise CaptureError(
                f"{name}: reads a tensor that {self._stale[index]} changed in place through "
                "another view of it; a split model cannot: make that change out of place"
            )
        return index

    def _spoil(self, tensor: torch.Tensor, name: str) -> None:
        """Mark all further tensors on the same storage as stale: they must not be read any more."""
        storage = get_storage_key(tensor)
        if storage in self._buffers:
            return  # changed in place on every device alike
        for alias, index in self._alive.get(storage, ()):
            if alias is not tensor:
                self._stale[index] = name

    def _name(self, func: Function) -> str:
        """Return a unique name for a call: its module's path, and the function unless the module is
        named after it.
        """
        path, leaf = self.stack[-1] if self.stack else ("", False)
        plain = function_name(func)
        alone = leaf and path and plain not in ASIDE
        if alone:
            base = path
        else:
            base = f"{path}.{plain}".lstrip(".")
        count = self._names.get(base, 0)
        self._names[base] = count + 1
        if count == 0:
            return base
        return f"{base}#{count + 1}"

    def graph(self, name: str, output: object) -> tuple[CallGraph, list[int]]:
        """Return the recorded calls that something needs, and their positions among all calls."""
        template = pytree.tree_map(self._ref_output, output)
        needed = {
            x.value for x in pytree.tree_leaves(template) if isinstance(x, CallRef)
        }
        # From the last call back: what is needed is read by a needed call, or lasts (buffers).
        positions: list[int] = []
        for index, call in reversed([*enumerate(self.calls)]):
            if needed.intersection(call.results) or index in self._lasting:
                needed.update(call.reads)
                positions.append(index)
        positions.reverse()
        calls = tuple(self.calls[i] for i in positions)
        constants = {i: t for i, t in self.constants.items() if i in needed}
        # A tensor from outside that wants a gradient would be trained by nobody.
        for call in calls:
            learned = [constants[i] for i in call.reads if i in constants]
            if (
                call.gradient
                and call.kind != "detach"
                and any(x.requires_grad for x in learned)
            ):
                raise CaptureError(
                    f"{call.name}: reads what torch.func (vmap, grad, jvp) made of parameters, and "
                    "is no call of the step; write that for whole batches, or `place` the model"
                    if self._is_transformed()
                    else f"{call.name}: reads a tensor that needs a gradient and is no parameter "
                    "of the model, which nothing would train; register it there, or detach() it"
                )
        position = {index: place for place, index in enumerate(positions)}
        changed = {
            buffer: tuple(position[i] for i in indices if i in position)
            for buffer, indices in self._changing.items()
        }
        graph = CallGraph(
            name=name,
            calls=calls,
            values=tuple(self.values),
            output=template,
            constants=constants,
            changed=changed,
        )
        return graph, positions

    def _is_transformed(self) -> bool:
        """Return whether what ``torch.func`` wrapped was computed from a parameter."""
        within = is_functorch_wrapped_tensor
        wrapped = {
            index
            for group in self._alive.values()
            for tensor, index in group
            if within(tensor)
        }
        read = {
            i
            for call in self.calls
            if not wrapped.isdisjoint(call.results)
            for i in call.reads
        }
        return any(self.values[i].source == PARAMETER for i in read)

    def _ref_output(self, leaf: object) -> object:
        if isinstance(leaf, torch.Tensor):
            return CallRef(self._read(leaf, "the output"))
        plain = leaf is None or isinstance(leaf, bool | int | float | str)
        return leaf if plain else None  # such as a cache of keys and values


def running_statistics(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the buffers that a norm in train mode changes, of which torch counts no version."""
    kind = function_name(func)
    if kind not in NORMS:
        return []
    position, name, default = NORMS[kind]
    if len(args) > position:
        trains = args[position]
    else:
        trains = kwargs.get(name, default)
    if not trains:
        return []
    named = [kwargs.get("running_mean"), kwargs.get("running_var")]
    return find_tensors((args[1:3], named))
