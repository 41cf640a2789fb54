"""Objects that a batch may be: whatever a loader, a tokenizer or a collate function yields.

A batch is a tensor, or a tuple, list, dict, named tuple, dataclass, mapping, PyTorch Geometric
`Data` or object of a user's class that holds tensors, nested in any way. Types that torch's pytrees
do not know are registered with them by their fields, so that every road sees the same leaves:
tensors are inputs of the step; anything else is a constant, which each later batch must repeat.

`as_inputs` is the entry of every road: it registers the types in a batch and refuses what a step
cannot take. `BatchStructure` compares later batches with the example.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import inspect
import pathlib
import sys
import types
import uuid
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import torch
from torch.nn.parameter import Buffer

from gnnplace.errors import InputError, MismatchError
from gnnplace.geometric_names import (
    BATCH_TABLES,
    NUM_GRAPHS,
    get_store_kind,
    read_entries,
)
from gnnplace.torch_names import FakeTensor, disabled_torch_function_impl, pytree

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

Path = tuple[Any, ...]
"""Place of a leaf in a batch, in the keys of torch's pytrees."""
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, Buffer, FakeTensor)
USUAL_FUNCTION: Any = vars(torch.Tensor)["__torch_function__"].__func__
CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    np.generic,
    np.dtype,
    range,
    slice,
    pathlib.PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)
"""Values that are compared with `==`; a class or function is compared by identity."""
NAMED = (dict, OrderedDict, defaultdict)
"""Types of a batch that is inputs by name."""
CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.GeneratorType,
    torch.nn.Module,
    torch.Generator,
)
HIDDEN_SLOTS = ("__dict__", "__weakref__")


Inputs = tuple[Any, ...] | dict[str, Any]
"""Positional inputs of a model, or inputs by name."""


def as_inputs(batch: object, model: torch.nn.Module | None = None) -> Inputs:
    """Return a batch as positional inputs (a tuple) or as inputs by name (a dict).

    A list or tuple holds positional inputs, as data loaders give them, unless only the whole of it
    fits the one parameter of the model's `forward`. Any other object is the only positional input.

    Args:
        batch: A batch as a loader yields it, or what this function returned.
        model: The model whose `forward` decides where a list or named tuple may be one input.

    Raises:
        InputError: a field is of a type that a recorded step cannot take; names both.
    """
    if isinstance(batch, dict) and type(batch) in NAMED:
        inputs: Inputs = dict(batch)
    elif isinstance(batch, tuple | list) and not _is_one_input(batch, model):
        register_types(batch)
        inputs = tuple(batch)
    else:
        inputs = (batch,)
    register_types(inputs)
    return inputs


def register_types(batch: object) -> None:
    """Register with torch's pytrees every type in a batch that they do not know.

    Raises:
        InputError: a field is of a type that a recorded step cannot take; names both.
    """
    _register((), batch, ())


def refuse_input_gradients(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse inputs that ask for a gradient, which a recorded step does not make.

    Raises:
        InputError: the input is named.
    """
    learns = [path for path, tensor in tensors.items() if tensor.requires_grad]
    if learns and torch.is_grad_enabled():
        raise InputError(
            f"batch: input {learns[0]} has requires_grad, and a recorded step makes no gradients "
            "of inputs; give it detached (.detach()), and take the gradient of the input from the "
            "model itself: model(...) in plain PyTorch"
        )


def label(path: Path) -> str:
    """Return a leaf's place in a batch as code writes it, such as `batch[0].edge_index`."""
    return f"batch{pytree.keystr(path)}"


def leaves_by_path(inputs: object) -> dict[str, Any]:
    """Return all leaves of inputs by the path of each, in order."""
    return {
        pytree.keystr(p): leaf for p, leaf in pytree.tree_flatten_with_path(inputs)[0]
    }


@dataclass(frozen=True)
class BatchStructure:
    """The leaves of an example batch, against which later batches are checked.

    Attributes:
        leaves: Leaves of the example by path; `_TENSOR` stands for each tensor.
        kinds: Type and context of every object in it, by path; lists, tuples and dicts are told by
            their leaves.
    """

    leaves: Mapping[str, Any]
    kinds: Mapping[Path, tuple[type, Any]]

    @classmethod
    def of(cls, inputs: object) -> BatchStructure:
        """Return the structure of inputs that `as_inputs` returned."""
        leaves = leaves_by_path(inputs)
        tensors = {
            path: _TENSOR for path, x in leaves.items() if isinstance(x, torch.Tensor)
        }
        return cls(
            {**leaves, **tensors}, dict(_kinds((), pytree.tree_structure(inputs)))
        )

    def inputs(self, batch: object) -> Inputs:
        """Return a batch as the inputs that the example was: spread, or as one.

        Raises:
            InputError: see `as_inputs`.
        """
        inputs = as_inputs(batch)
        if isinstance(batch, tuple | list) and not self._fits(inputs):
            register_types((batch,))
            if self._fits((batch,)):
                return (batch,)
        return inputs

    def tensors(self, batch: object) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch by path, in the example's order.

        Raises:
            InputError: a leaf is missing, new, or of a type that no step can take; names it.
            MismatchError: what is no tensor has another value than in the example; names it.
        """
        inputs = self.inputs(batch)
        leaves = leaves_by_path(inputs)
        missing = self.leaves.keys() - leaves.keys()
        new = leaves.keys() - self.leaves.keys()
        if missing or new:
            path = next(p for p in (*self.leaves, *leaves) if p in missing or p in new)
            if path in missing:
                fault = "has no"
            else:
                fault = "has an unknown"
            raise InputError(
                f"batch: it {fault} input {path}; give batches with the inputs of the example"
            )
        for path, example in self.leaves.items():
            self._check(path, example, leaves[path])
        kinds = dict(_kinds((), pytree.tree_structure(inputs)))
        for place, (kind, context) in kinds.items():
            example_kind, example_context = self.kinds.get(place, (None, None))
            if kind is not example_kind or context != example_context:
                key_text = "".join(f"[{key!r}]" for key in place)
                raise MismatchError(
                    f"batch: input {key_text} is a {kind.__name__} of another form than in the "
                    "example; make the step anew for such batches"
                )
        return {
            path: leaves[path]
            for path, example in self.leaves.items()
            if example is _TENSOR
        }

    def _fits(self, inputs: object) -> bool:
        """Return whether inputs have the leaves of the example."""
        return leaves_by_path(inputs).keys() == self.leaves.keys()

    def _check(self, path: str, example: object, leaf: object) -> None:
        """Refuse a leaf that is no tensor where the example has one, or a constant that changed.

        Raises:
            MismatchError: the leaf is named.
        """
        if example is _TENSOR and isinstance(leaf, torch.Tensor):
            return
        if example is _TENSOR or isinstance(leaf, torch.Tensor):
            if example is _TENSOR:
                example_word = "a tensor"
            else:
                example_word = repr(example)
            if isinstance(leaf, torch.Tensor):
                leaf_word = "a tensor"
            else:
                leaf_word = repr(leaf)
            raise MismatchError(
                f"batch: input {path} is {leaf_word}, and was {example_word} in the example; make "
                "the step anew for such batches"
            )
        if not is_same_constant(example, leaf):
            if path.endswith("num_nodes"):
                remedy = "pad every graph to one number of nodes"
            else:
                remedy = "give it as a tensor, leave it out, or make the step anew"
            raise MismatchError(
                f"batch: input {path} is {leaf!r}, and was {example!r} in the example; what is no "
                f"tensor is recorded: {remedy}"
            )


def is_same_constant(example: object, leaf: object) -> bool:
    """Return whether a constant of the example has its value in another batch too."""
    if example is leaf:
        return True
    if type(example) is not type(leaf):
        return False
    both_nan = isinstance(example, float) and example != example and leaf != leaf
    return both_nan or bool(example == leaf)


def _kinds(
    path: Path, spec: pytree.TreeSpec
) -> Iterator[tuple[Path, tuple[type, Any]]]:
    """Yield the type and context of every object in a structure, by its place."""
    if spec.is_leaf():
        return
    keys: Iterable[Any] = range(spec.num_children)
    if spec.type in (dict, OrderedDict):
        keys = spec.context
    elif spec.type is defaultdict:
        keys = spec.context[1]
    elif spec.type not in (list, tuple):
        yield path, (spec.type, spec.context)
    for key, child in zip(keys, spec.children(), strict=True):
        yield from _kinds((*path, key), child)


class _Tensor:
    """A tensor in a `BatchStructure`."""

    def __repr__(self) -> str:
        return "a tensor"


_TENSOR = _Tensor()


class Unreadable:
    """A private attribute of a rebuilt object that no step can take.

    Args:
        path: Place of the attribute.
        kind: The name of its type.
    """

    def __init__(self, path: str, kind: str) -> None:
        object.__setattr__(self, "_refused", (path, kind))

    def _refuse(self, *args: object) -> NoReturn:
        """Refuse to be read.

        Raises:
            InputError: always; the attribute and its type are named.
        """
        path, kind = object.__getattribute__(self, "_refused")
        raise InputError(
            f"{path} is of type {kind}, which a recorded step cannot read; give what the model "
            "needs of it as tensors"
        )

    __getitem__ = __iter__ = __len__ = __bool__ = __call__ = __contains__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name[:2] == "__":
            raise AttributeError(name)
        self._refuse()


def _register(path: Path, value: object, holders: tuple[int, ...]) -> None:
    """Register the types of a value and of all that it holds; `holders` are ids of what has it."""
    if isinstance(value, torch.Tensor):
        _check_tensor(path, value)
        return
    if _is_constant(value):
        return
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        raise InputError(
            f"{label(path)} is a PackedSequence, whose lengths are other ones in every batch; give "
            "the padded tensor and a mask"
        )
    if id(value) in holders:
        raise InputError(
            f"{label(path)} refers to the {type(value).__name__} that holds it; give batches whose "
            "fields hold tensors, numbers and containers of these"
        )
    if not _is_known(value):
        _register_type(path, value)
    elif type(value) in pytree.SUPPORTED_NODES:
        _add_keys(type(value))
    below = (*holders, id(value))
    for key, child in _children(value):
        _register((*path, *key), child, below)


def _children(value: object) -> Iterator[tuple[Path, Any]]:
    """Yield keys and values one level below a container that torch's pytrees know."""
    visited: list[Any] = []

    def is_below(item: object) -> bool:
        visited.append(item)
        return len(visited) > 1  # a child may be the container itself

    _, spec = pytree.tree_flatten(value, is_leaf=is_below)
    keys = pytree.SUPPORTED_NODES[spec.type].flatten_with_keys_fn
    assert keys is not None
    yield from (((key,), child) for key, child in keys(value)[0])


def _add_keys(kind: type) -> None:
    """Give a type that was registered without keys the numbers of its children as keys."""
    node = pytree.SUPPORTED_NODES[kind]
    if node.flatten_with_keys_fn is not None:
        return

    def flatten_with_keys(item: object) -> tuple[list[Any], Any]:
        children, context = node.flatten_fn(item)
        return [
            (pytree.SequenceKey(i), child) for i, child in enumerate(children)
        ], context

    pytree.SUPPORTED_NODES[kind] = node._replace(flatten_with_keys_fn=flatten_with_keys)


def _is_known(value: object) -> bool:
    """Return whether torch's pytrees know the type of a value."""
    kind = type(value)
    return kind in pytree.SUPPORTED_NODES or pytree.is_namedtuple_class(kind)


def _is_constant(value: object) -> bool:
    """Return whether a value is compared as a constant."""
    if isinstance(value, set | frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, (*CONSTANTS, type))


def _check_tensor(path: Path, tensor: torch.Tensor) -> None:
    """Refuse tensors whose kind a recorded step would lose.

    Raises:
        InputError: the field, its type and a way out are named.
    """
    kind = type(tensor)
    if tensor.is_nested:
        raise InputError(
            f"{label(path)} is a nested tensor, whose shape is another one in every batch; give a "
            "padded tensor (to_padded_tensor) and a mask"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        if tensor.is_quantized:
            layout = "quantized"
        else:
            layout = str(tensor.layout)
        if pytree.keystr(path).endswith("adj_t"):
            remedy = "edge_index in place of adj_t (leave ToSparseTensor out)"
        else:
            remedy = (
                "a dense one (.to_dense(), .dequantize()), or its indices and values"
            )
        raise InputError(
            f"{label(path)} is no dense tensor ({layout}), and a recorded step takes dense ones "
            f"alone; give {remedy}"
        )
    if kind in PLAIN_TENSORS or isinstance(tensor, FakeTensor):
        return
    functions = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    usual = (USUAL_FUNCTION, disabled_torch_function_impl)
    dispatches = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if functions not in usual or dispatches:
        raise InputError(
            f"{label(path)} is of type {kind.__name__}, a tensor that computes in ways of its own, "
            "which a recorded step would lose; give .as_subclass(torch.Tensor) of it"
        )


def _register_type(path: Path, value: object) -> None:
    """Register one type by its fields.

    Raises:
        InputError: its objects cannot be taken apart and built again.
    """
    kind = type(value)
    adapter = next((a for a in ADAPTERS if a.takes(value)), None)
    if adapter is None:
        raise InputError(_refusal(path, value))
    try:
        fields = adapter.fields(value)
        adapter.rebuild(adapter.template(value), fields)
    except Exception:
        raise InputError(_refusal(path, value)) from None

    def flatten(item: object) -> tuple[list[Any], _FieldNames]:
        entries = adapter.fields(item)
        return [*entries.values()], _FieldNames(tuple(entries), adapter.template(item))

    def flatten_with_keys(item: object) -> tuple[list[Any], _FieldNames]:
        values, form = flatten(item)
        keys = [adapter.key(name) for name in form.names]
        return [*zip(keys, values, strict=True)], form

    def unflatten(values: Iterable[object], form: _FieldNames) -> object:
        return adapter.rebuild(
            form.template, dict(zip(form.names, values, strict=True))
        )

    pytree.register_pytree_node(
        kind, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys
    )


def _refusal(path: Path, value: object) -> str:
    """Return the error for a value that a step cannot take."""
    kind = type(value)
    if kind.__module__ == "builtins":
        name = kind.__name__
    else:
        name = f"{kind.__module__}.{kind.__name__}"
    if isinstance(value, np.ndarray):
        return (
            f"{label(path)} is a NumPy array ({name}), which PyTorch's layers do not take; give a "
            "tensor: torch.from_numpy(...)"
        )
    return (
        f"{label(path)} is of type {name}, which a recorded step cannot take; give tensors, "
        "numbers, texts, or lists, tuples, dicts, dataclasses and objects that hold them, or "
        "leave it out"
    )


class _FieldNames:
    """The form of an object that is built again from its fields.

    Args:
        names: Names of the fields, in order; two forms are equal if these are.
        template: An object of the type without the fields.
    """

    def __init__(self, names: tuple[Any, ...], template: object) -> None:
        self.names = names
        self.template = template

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FieldNames) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return ", ".join(map(str, self.names))


class _ObjectAdapter:
    """Objects, taken apart by attributes and slots; a mapping's or list's items too."""

    ITEMS: ClassVar[str] = "items()"

    def takes(self, value: object) -> bool:
        """Return whether this adapter is for a value."""
        kind = type(value)
        if isinstance(value, (*CODE, np.ndarray)) or kind.__module__ == "builtins":
            return False
        has_slots = any(True for _ in _slots(kind))
        return (
            hasattr(value, "__dict__")
            or has_slots
            or isinstance(value, dict | list | tuple)
        )

    def fields(self, value: object) -> dict[Any, Any]:
        """Return attributes and items by name, in the order of the class."""
        fields: dict[Any, Any] = {}
        table = getattr(value, "__dict__", {})
        for name in () if table is value else _order_names(type(value), table):
            fields[name] = table[name]
        for name in _slots(type(value)):
            try:
                fields[name] = object.__getattribute__(value, name)
            except AttributeError:
                continue  # never set
        if isinstance(value, dict):
            fields[self.ITEMS] = {
                key: dict.__getitem__(value, key) for key in dict.keys(value)
            }
        elif isinstance(value, list | tuple):
            fields[self.ITEMS] = [*value]
        return fields

    def template(self, value: object) -> object:
        """Return the class, and whether a mapping's entries are its attributes."""
        return type(value), getattr(value, "__dict__", None) is value

    def rebuild(self, template: Any, fields: Mapping[Any, Any]) -> object:
        """Return a new object with fields."""
        kind, aliased = template
        items: Any = fields.get(self.ITEMS)
        if issubclass(kind, tuple):
            value = tuple.__new__(kind, items)
        else:
            value = kind.__new__(kind)
        if issubclass(kind, dict):
            dict.update(value, items)
            if aliased:
                value.__dict__ = value
        elif issubclass(kind, list):
            list.extend(value, items)
        for name, field in fields.items():
            if name != self.ITEMS:
                object.__setattr__(value, name, field)
        return value

    def key(self, name: Any) -> object:
        """Return a field's key in a path."""
        if name == self.ITEMS:
            return _ItemsKey()
        return pytree.GetAttrKey(name)


class _MappingAdapter(_ObjectAdapter):
    """`UserDict`s, as tokenizers give them, taken apart into entries and plain attributes."""

    def takes(self, value: object) -> bool:
        """Return whether this adapter is for a value."""
        return isinstance(value, UserDict)

    def fields(self, value: Any) -> dict[Any, Any]:
        """Return the entries by key, then plain attributes."""
        entries: dict[Any, Any] = {
            pytree.MappingKey(key): entry for key, entry in value.data.items()
        }
        table = value.__dict__
        plain = {
            n: table[n] for n in sorted(table) if n != "data" and _is_constant(table[n])
        }
        return {**entries, **plain}

    def template(self, value: object) -> object:
        """Return the class, and types of attributes that cannot be taken."""
        table = value.__dict__
        unreadable = {
            name: type(field).__name__
            for name, field in table.items()
            if name != "data" and not _is_constant(field)
        }
        return type(value), unreadable

    def rebuild(self, template: Any, fields: Mapping[Any, Any]) -> object:
        """Return a new mapping with fields."""
        kind, unreadable = template
        value = kind.__new__(kind)
        entries = {
            n.key: x for n, x in fields.items() if isinstance(n, pytree.MappingKey)
        }
        object.__setattr__(value, "data", entries)
        for name, field in fields.items():
            if not isinstance(name, pytree.MappingKey):
                object.__setattr__(value, name, field)
        for name, type_name in unreadable.items():
            stand_in = Unreadable(f"attribute {name!r} of a {kind.__name__}", type_name)
            object.__setattr__(value, name, stand_in)
        return value

    def key(self, name: Any) -> object:
        """Return a field's key in a path."""
        if isinstance(name, pytree.MappingKey):
            return name
        return pytree.GetAttrKey(name)


class _GraphAdapter:
    """PyTorch Geometric's `Data`, `HeteroData` and batches of them, taken apart."""

    def takes(self, value: object) -> bool:
        """Return whether this adapter is for a value."""
        module = sys.modules.get("torch_geometric.data.data")
        return (
            module is not None
            and isinstance(value, module.BaseData)
            and hasattr(value, "stores")
        )

    def fields(self, value: object) -> dict[Any, Any]:
        """Return the entries of every store; features of nodes first, since they have the batch."""
        fields: dict[Any, Any] = {}
        for store in _stores(value):
            key = get_store_kind(store)
            mapping = read_entries(store)
            for name in sorted(mapping, key=lambda n: (n != "x", n != "edge_index", n)):
                fields[(key, name)] = mapping[name]
            if NUM_GRAPHS in store.__dict__:
                fields[(key, NUM_GRAPHS)] = store.__dict__[NUM_GRAPHS]
        return fields

    def template(self, value: object) -> object:
        """Return a copy without the entries."""
        bare = copy.copy(value)
        for store in _stores(bare):
            read_entries(store).clear()
            for name in BATCH_TABLES:
                if name in store.__dict__:
                    place = f"attribute {name!r} of a {type(value).__name__}"
                    store.__dict__[name] = Unreadable(place, "dict")
        return bare

    def rebuild(self, template: object, fields: Mapping[Any, Any]) -> object:
        """Return a copy of the template with entries."""
        value = copy.copy(template)
        stores = {get_store_kind(store): store for store in _stores(value)}
        for (key, name), field in fields.items():
            if name == NUM_GRAPHS:
                stores[key].__dict__[name] = field
            else:
                read_entries(stores[key])[name] = field
        return value

    def key(self, name: tuple[Hashable, str]) -> object:
        """Return a field's key in a path: `.x`, or `['paper'].x` of one kind of nodes."""
        key, field = name
        if key is None:
            return pytree.GetAttrKey(field)
        return _StoreKey(key, field)


@dataclass(frozen=True)
class _StoreKey:
    """The key of an entry of one kind of nodes or edges."""

    kind: Any
    name: str

    def __str__(self) -> str:
        return f"[{self.kind!r}].{self.name}"

    def get(self, value: Any) -> Any:
        """Return the entry."""
        return value[self.kind][self.name]


@dataclass(frozen=True)
class _ItemsKey:
    """The key of the items of a subclass of dict, list or tuple; paths leave it out."""

    def __str__(self) -> str:
        return ""

    def get(self, value: object) -> object:
        """Return the items."""
        return value


ADAPTERS: tuple[Any, ...] = (_GraphAdapter(), _MappingAdapter(), _ObjectAdapter())


def _stores(data: BaseData) -> list[Any]:
    """Return the stores of a graph: its own, then nodes' and edges' by kind."""

    def order(store: object) -> tuple[bool, str]:
        key = get_store_kind(store)
        return isinstance(key, tuple), str(key or "")

    return sorted(data.stores, key=order)


def _order_names(kind: type, table: Mapping[str, Any]) -> list[str]:
    """Return names of attributes in the order of annotations; cached properties are left out."""
    annotated = dict.fromkeys(
        n for base in reversed(kind.__mro__) for n in _annotations(base)
    )
    names = [n for n in annotated if n in table] + sorted(
        n for n in table if n not in annotated
    )
    return [
        name
        for name in names
        if not isinstance(inspect.getattr_static(kind, name, None), cached_property)
    ]


def _annotations(kind: type) -> Mapping[str, Any]:
    """Return the annotations of a class itself."""
    return vars(kind).get("__annotations__", {})


def _slots(kind: type) -> Iterator[str]:
    """Yield the names of a class's slots, those of its bases first."""
    for base in reversed(kind.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name[:2] == "__" and name[-2:] != "__"
            if name not in HIDDEN_SLOTS:
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def _is_one_input(batch: Sequence[object], model: torch.nn.Module | None) -> bool:
    """Return whether `forward` takes a list or named tuple only as one input."""
    if type(batch) is tuple or model is None:
        return False
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return False

    def binds(*args: object) -> bool:
        try:
            signature.bind(*args)
        except TypeError:
            return False
        return True

    return binds(batch) and not any(
        binds(*batch[:count]) for count in range(1, len(batch) + 1)
    )
