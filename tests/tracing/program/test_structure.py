"""The graph of a program: edges, bytes, classes, state."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from gnnplace import zoo
from gnnplace.problem import UPDATE
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.program import Program, alias_roots
from gnnplace.tracing.program.structure import find_touching_ops, program_graph


def small() -> Program:
    work = zoo.build("small_resnet", batch=2)
    return capture(work.model, work.inputs, loss=work.loss, optimizer="adamw")


def test_edges_are_reads_and_orders() -> None:
    program = small()
    fine = program_graph(program)
    wanted = {
        (program.producer[r], i)
        for i, op in enumerate(program.ops)
        for r in op.reads
        if r in program.producer
    }
    wanted |= {
        (program.op_index[a], i) for i, op in enumerate(program.ops) for a in op.after
    }
    source, target, _ = fine.graph.edges
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == wanted


def test_bytes_are_those_of_the_values() -> None:
    program = small()
    fine = program_graph(program)
    for k, name in enumerate(fine.values):
        assert fine.graph.size[k] == (program.values[name].bytes if name else 0)


def test_a_tensor_and_its_views_are_one_class() -> None:
    program = small()
    fine, roots = program_graph(program), alias_roots(program.ops)
    of = {name: int(fine.root[k]) for k, name in enumerate(fine.values) if name}
    for name, found in of.items():
        kinds = {
            program.inputs[r].kind for r in roots.get(name, ()) if r in program.inputs
        }
        assert (found == -1) == (kinds == {"parameter"})
        same = {
            other
            for other in of
            if roots.get(other, {other}) == roots.get(name, {name})
        }
        assert found == -1 or {other for other in of if of[other] == found} == same
    assert -1 in of.values()
    orders = [int(fine.root[k]) for k, name in enumerate(fine.values) if not name]
    assert len(set(orders)) == len(orders)


def test_all_that_touches_a_parameter_is_in_one_class() -> None:
    program = small()
    fine = program_graph(program)
    for members in find_touching_ops(program).values():
        assert len({fine.colocate[i] for i in members}) == 1
        assert fine.colocate[members[0]] is not None
    updates = [i for i, op in enumerate(program.ops) if op.phase == "update"]
    assert all(fine.colocate[i] is not None for i in updates)
    assert (fine.phase[updates] == UPDATE).all()
    convolution = program.op_index["convolution"]
    gradient = program.producer[program.gradients["stem.0.0.weight"]]
    update = program.op_index["update.stem.0.0.weight"]
    assert (
        fine.colocate[convolution] == fine.colocate[gradient] == fine.colocate[update]
    )


def test_layers_that_share_nothing_are_in_classes_of_their_own() -> None:
    program = capture(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.ones(2, 4),)
    )
    assert len(set(program_graph(program).colocate) - {None}) == 2


def test_state_counts_each_parameter_with_its_optimizer_once() -> None:
    program = small()
    held = sum(
        entry.info.bytes
        for name, entry in program.inputs.items()
        if entry.kind != "input"
    )
    unread = sum(
        entry.info.bytes
        for name, entry in program.inputs.items()
        if entry.kind != "input" and not any(name in op.reads for op in program.ops)
    )
    assert np.isclose(program_graph(program).state.sum(), held - unread)


def test_views_and_buffer_copies_are_attached() -> None:
    program = small()
    fine = program_graph(program)
    for i, op in enumerate(program.ops):
        if op.name.startswith("copy."):
            assert fine.attach[i] == program.producer[op.args[1].name]
        elif op.view and op.reads[0] in program.producer:
            assert fine.attach[i] == program.producer[op.reads[0]]
        else:
            assert fine.attach[i] == -1
