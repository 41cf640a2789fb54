"""Batches of every kind come apart into tensors and constants, and together again."""

import dataclasses
import threading
from collections import UserDict, deque
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Batch, Data, HeteroData
from transformers import BatchEncoding

from gnnplace.errors import InputError, MismatchError
from gnnplace.tracing.inputs import BatchStructure, as_inputs, leaves_by_path

X = torch.arange(6.0).view(3, 2)


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    scale: float = 2.0
    mask: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    entries: dict[str, Any]


class Plain:
    def __init__(self, x):
        self.parts = [x, {"twice": x * 2}]

    @cached_property
    def total(self):
        return self.parts[0].sum()


class Slots:
    __slots__ = ("__weakref__", "never", "x")

    def __init__(self, x):
        self.x = x


class Attributes(dict):
    def __init__(self, **entries):
        super().__init__(entries)
        self.__dict__ = self


class Pair(NamedTuple):
    first: Any
    second: Any


class Items(list):
    pass


def several_kinds(x):
    data = HeteroData()
    data["paper"].x, data["author"].x = x, x + 1
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [1, 0]])
    return data


def graphs(x):
    return Batch.from_data_list(
        [Data(x=x, edge_index=torch.tensor([[0], [1]])) for _ in range(2)]
    )


KINDS = {
    "tensor": lambda x: x,
    "dataclass": Record,
    "frozen": lambda x: Frozen(x, {"a": x, "b": (x, 1)}),
    "plain": Plain,
    "slots": Slots,
    "dict with attributes": lambda x: Attributes(x=x),
    "named tuple": lambda x: Pair(Data(x=x), Record(x)),
    "list of its own": lambda x: Items([x, x]),
    "deque": lambda x: deque([x]),
    "namespace": lambda x: SimpleNamespace(x=x),
    "UserDict": lambda x: UserDict(x=x, n=3),
    "BatchEncoding": lambda x: BatchEncoding({"input_ids": x}),
    "Data": lambda x: Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]), name="a"),
    "Batch": graphs,
    "HeteroData": several_kinds,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_is_built_again_from_other_tensors(kind):
    """Of the same type, with the example's constants; the example stays as it is."""
    example = KINDS[kind](X)
    inputs = as_inputs((example,))
    doubled = pytree.tree_map(
        lambda x: x * 2 if isinstance(x, torch.Tensor) else x, inputs
    )
    (rebuilt,) = doubled
    assert type(rebuilt) is type(example)
    before, after = leaves_by_path(inputs), leaves_by_path(doubled)
    assert before.keys() == after.keys()
    for path, leaf in before.items():
        if isinstance(leaf, torch.Tensor):
            assert torch.equal(after[path], leaf * 2)
        else:
            assert after[path] == leaf
    structure = BatchStructure.of(inputs)
    assert (
        structure.tensors((KINDS[kind](X + 1),)).keys()
        == structure.tensors(inputs).keys()
    )


def test_a_graph_has_its_nodes_first_and_its_own_methods():
    """The first tensor says how many examples there are."""
    (rebuilt,) = pytree.tree_map(lambda x: x, as_inputs((graphs(X),)))
    assert next(iter(leaves_by_path((rebuilt,)))) == "[0].x"
    assert (rebuilt.num_graphs, rebuilt.num_nodes, rebuilt.num_edges) == (2, 6, 2)
    with pytest.raises(
        InputError, match="'_slice_dict' of a DataBatch is of type dict"
    ):
        rebuilt.to_data_list()
    assert (
        next(iter(leaves_by_path(as_inputs((several_kinds(X),))))) == "[0]['author'].x"
    )


def test_lists_are_spread_unless_only_the_whole_fits_the_model():
    class Takes(nn.Module):
        def forward(self, batch):
            return batch

    assert len(as_inputs([X, X])) == 2
    assert len(as_inputs([X, X], nn.Linear(2, 2))) == 2
    assert isinstance(as_inputs(Pair(X, 1), Takes()), tuple)
    assert as_inputs({"x": X}).keys() == {"x"}
    assert isinstance(as_inputs(BatchEncoding({"x": X}))[0], BatchEncoding)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Record(X, 3.0), r"input \[0\].scale is 3.0, and was 2.0"),
        (Record(X, 2.0, X), r"input \[0\].mask is a tensor, and was None"),
        (Record(X, 2), r"input \[0\].scale is 2, and was 2.0"),
    ],
)
def test_a_constant_that_changes_is_refused_by_name(batch, words):
    structure = BatchStructure.of(as_inputs(Record(X)))
    with pytest.raises(MismatchError, match=words):
        structure.tensors(batch)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": np.ones(3)}, r"batch\['x'\] is a NumPy array \(numpy.ndarray\)"),
        (Record(np.ones(3)), r"batch\[0\].x is a NumPy array"),
        (Record(threading.Lock()), r"batch\[0\].x is of type _thread.lock"),
        (
            Record(nn.Linear(1, 1)),
            r"batch\[0\].x is of type torch.nn.modules.linear.Linear",
        ),
        (
            Record(X.to_sparse()),
            r"batch\[0\].x is no dense tensor \(torch.sparse_coo\)",
        ),
        (Data(adj_t=X.to_sparse_csr()), "edge_index in place of adj_t"),
        (Record({X}), r"batch\[0\].x is of type set"),
        (torch.nested.nested_tensor([X, X[:1]]), r"batch\[0\] is a nested tensor"),
        (nn.utils.rnn.pack_sequence([X, X[:1]]), "PackedSequence"),
        ((X for _ in range(1)), "of type generator"),
    ],
)
def test_what_no_step_can_take_is_refused_with_field_and_type(batch, words):
    with pytest.raises(InputError, match=words) as caught:
        as_inputs(batch)
    assert "\n" not in str(caught.value)


def test_an_object_that_holds_itself_is_refused():
    batch = SimpleNamespace(x=X)
    batch.own = batch
    with pytest.raises(
        InputError, match=r"batch\[0\].own refers to the SimpleNamespace"
    ):
        as_inputs(batch)


class Registered:
    def __init__(self, x, factor):
        self.x, self.factor = x, factor


pytree.register_pytree_node(
    Registered,
    lambda r: ([r.x], r.factor),
    lambda values, factor: Registered(*values, factor),
)


def test_a_type_that_others_registered_keeps_its_form():
    """Without keys of its own; what is no child of it is compared too."""
    structure = BatchStructure.of(as_inputs((Registered(X, 2.0),)))
    assert list(structure.tensors(Registered(X, 2.0))) == ["[0][0]"]
    with pytest.raises(MismatchError, match="Registered of another form"):
        structure.tensors(Registered(X, 3.0))


def test_an_object_of_another_class_is_refused():
    @dataclasses.dataclass
    class Other(Record):
        pass

    with pytest.raises(MismatchError, match="a Other of another form"):
        BatchStructure.of(as_inputs(Record(X))).tensors(Other(X))
