"""Proves that the loss of a batch is the mean of its shares' losses, or repairs it, or refuses it.

`Cutter` is called with the exported forward pass of a share. It exports that of the whole batch
beside it, follows the batch through both (`axis`), and returns the share's graph, repaired
where it had to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import fx

from gnnplace.errors import OtherLossError
from gnnplace.torch_names import FakeTensor
from gnnplace.tracing.batch.axis import Flow, follow
from gnnplace.tracing.batch.cut import GIVEN, CutBatch, batch_axes, subgraph, write_out_counts
from gnnplace.tracing.batch.numbers import differences, own_differences
from gnnplace.tracing.batch.state import MIXED, UNKNOWN, State, op_name
from gnnplace.tracing.batch.twins import make_alike
from gnnplace.tracing.calls import OwnCall, mixed_by, own_functions
from gnnplace.tracing.guards import node_place
from gnnplace.tracing.program import Program
from gnnplace.tracing.step import StepModule
from gnnplace.zoo import Workload

ADDED = "sums over the examples are added up, not averaged"
SUMMED = f"the loss is a sum: {ADDED}"
EVEN = "means over counts must be over equal counts in every micro-batch"
MEND = "leave the batch whole (--microbatches 1), or say --accept-other-loss"
UNSAID = "makes gradients that no forward pass says"
Export = Callable[[StepModule], torch.export.ExportedProgram]


@dataclass(frozen=True)
class UncutBatch:
    """The whole batch of which a share is captured.

    Attributes:
        workload: Model, all inputs and loss.
        count: The number of shares, M.
        accept: Capture the share as it is where its loss is another one.
    """

    workload: Workload
    count: int
    accept: bool = False


class Cutter:
    """Cuts the batch of one capture.

    Args:
        step: Model, loss and inputs of the whole batch.
        share: The same of one share.
        count: The number of shares, M.
        accept: Whether another loss is accepted, as `UncutBatch` says.
        name: The name of the model, for messages.
        bare: Whether shares run as they are, without repairs, as in plans; notes say what that
            needs.

    Attributes:
        batch: What was found, after the call.
        repaired: Whether the graph that the call returned was rewritten.
    """

    def __init__(
        self,
        step: StepModule,
        share: StepModule,
        count: int,
        *,
        accept: bool,
        name: str,
        bare: bool = False,
    ) -> None:
        self._step, self._accept, self._name, self._bare = step, accept, name, bare
        axes = tuple(batch_axes(share.inputs(), step.inputs()))
        self.batch = CutBatch(count, axes, whole=step)
        if not self._is_fake:
            self.batch = replace(self.batch, shares=self.batch.cut(step.inputs()))
        self._uncut, self.repaired = self.batch, False
        self._tried: Callable[[], str | None] | None = None

    @property
    def _is_fake(self) -> bool:
        return any(isinstance(t, FakeTensor) for t in self._step.inputs())

    def __call__(
        self,
        exported: torch.export.ExportedProgram,
        export: Export,
        *,
        own: Sequence[str] = (),
        called: Sequence[OwnCall] = (),
        fixed: str = "",
    ) -> fx.GraphModule:
        """The share's forward graph, repaired.

        Args:
            exported: The share's forward pass.
            export: Exports another module's forward pass.
            own: What makes gradients that the forward pass does not say.
            called: Calls of autograd functions that were exported; all of `own`, where given.
            fixed: Why the graph that is returned will not be used, so that nothing can be
                repaired; counts must be equal then. Empty: it will.

        Raises:
            OtherLossError: the loss of the whole batch is not that of its shares.
        """
        self.batch, self.repaired = self._uncut, False
        with own_functions() as uncut:
            share, whole = _module(exported), _module(export(self._step))
        self._tried = partial(mixed_by, uncut, called, self.batch.count) if called else None
        write_out_counts(whole)
        flow = self._followed(share, whole)
        loss = flow.loss
        if loss.kind == UNKNOWN and self._has_numbers:
            share = _module(exported)
            flow = self._followed(share, whole, assume=True)
            loss = flow.loss if flow.loss.kind == MIXED else loss
        self.batch = replace(self.batch, exceptions=tuple(exceptions(flow)))
        if fixed and flow.holds and (flow.given or flow.scaled):
            self._leave(_module(exported), share, whole, flow, fixed)
            self._confirm(own, whole)
            return share
        if flow.holds:
            self._give(share, whole, flow)
            self.repaired = bool(flow.given or flow.scaled)
            self.batch = replace(self.batch, notes=tuple(notes(flow)))
        else:
            share = _module(exported)
        self._judge(loss, self._numbers(whole, share, loss))
        self._confirm(own, whole)
        if self._bare and flow.holds:
            self._bear(_module(exported), whole, bool(flow.assumed))
        if self.batch.differs:
            self.batch = replace(self.batch, given=(), numbers=None, notes=())
            self.repaired = False
            return _module(exported)
        return share

    def _leave(
        self,
        share: fx.GraphModule,
        repaired: fx.GraphModule,
        whole: fx.GraphModule,
        flow: Flow,
        fixed: str,
    ) -> None:
        """Leave a share as it is: its counts must be equal, now and in every step."""
        needed = "; ".join(notes(flow))
        loss = State(UNKNOWN, why=f"it needs a repair ({needed}), but {fixed}")
        off = None
        if self._has_numbers:
            off = differences(whole, share, self._step.inputs(), self.batch, uneven=False)
        if off == "":
            counts = subgraph(repaired, flow.counted)
            self.batch = replace(self.batch, counts=counts, notes=(EVEN,))
            self.batch.check(self._step.inputs())
        else:
            self._judge(loss, off)

    def _confirm(self, own: Sequence[str], whole: fx.GraphModule) -> None:
        """Holds gradients that a step makes in ways of its own against those of its shares."""
        if own and not self.batch.differs and (self._bare or not self.repaired):
            off = own_differences(self._step, whole, self.batch) if self._has_numbers else None
            off = self._tried() if off is None and self._tried is not None else off
            why = f"its {own[0]} {UNSAID}"
            self._judge(State(UNKNOWN, why=why), off)

    def _bear(self, share: fx.GraphModule, whole: fx.GraphModule, assume: bool) -> None:
        """Notes of a share that nothing repairs; refuses one that needs a number of the batch."""
        flow = self._followed(share, whole, assume=assume, equal=True)
        self._judge(flow.loss, None)
        told = [EVEN] if flow.counts else []
        self.batch = replace(self.batch, notes=(*told, *notes(flow)))

    def _followed(
        self,
        share: fx.GraphModule,
        whole: fx.GraphModule,
        *,
        assume: bool = False,
        equal: bool = False,
    ) -> Flow:
        write_out_counts(share)
        make_alike(share, whole)
        modes = {"outputs": self._step.forward_only, "assume": assume, "equal": equal}
        return follow(share, whole, self.batch.count, **modes)

    @property
    def _has_numbers(self) -> bool:
        return not self._is_fake and not self._step.forward_only

    def _numbers(self, whole: fx.GraphModule, share: fx.GraphModule, loss: State) -> str | None:
        """What is off in numbers; None where there are none, or they do not matter."""
        if not self._has_numbers or loss.kind == MIXED:
            return None
        return differences(whole, share, self._step.inputs(), self.batch)

    def _judge(self, loss: State, numbers: str | None) -> None:
        """Refuse what mixes examples, what numbers refute, and what neither way decides."""
        if not loss.is_failure and not numbers:
            return
        if loss.kind == UNKNOWN and numbers == "":
            found = f"{said(loss)}, but the numbers of the shares are those of the batch"
            self.batch = replace(self.batch, notes=(*self.batch.notes, found))
            return
        why = said(loss) if loss.is_failure else str(numbers)
        why += f", and {numbers}" if loss.is_failure and numbers else ""
        told = f"{why}, so that the loss of the batch is not the mean of its shares' losses"
        if not self._accept:
            raise OtherLossError(f"{self._name}, {self.batch.count} micro-batches: {told}; {MEND}")
        self.batch = replace(self.batch, differs=told)

    def _give(self, share: fx.GraphModule, whole: fx.GraphModule, flow: Flow) -> None:
        """Let the share read what it is given of the example."""
        if not flow.given:
            return
        numbers = subgraph(whole, list(flow.given.values()))
        self.batch = replace(self.batch, given=tuple(flow.given), numbers=numbers)
        values = self.batch.values(self._step.inputs())
        for name, value in values.items():
            setattr(share, name, value.clone())


def _module(exported: torch.export.ExportedProgram) -> fx.GraphModule:
    module = exported.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return module


def finished(program: Program, batch: CutBatch) -> Program:
    """The program of a share that knows its batch: example inputs, and what it is given."""
    known = [f"constant.{name}" for name in batch.given]
    inputs = {
        name: replace(entry, kind=GIVEN) if name in known else entry
        for name, entry in program.inputs.items()
    }
    kept = tuple(name for name in known if name in inputs)
    if batch.numbers is not None and len(kept) < len(known):  # some were made of others
        output = batch.numbers.graph.output_node()
        pairs = zip(known, output.args[0], strict=True)  # type: ignore[arg-type]
        output.args = (tuple(node for name, node in pairs if name in inputs),)
        batch.numbers.recompile()
    return replace(program, inputs=inputs, batch=replace(batch, given=kept))


def said(state: State) -> str:
    """Which op it is and what it does, in words."""
    node = state.culprit
    if node is None:
        return f"the loss cannot be cut: {state.why}"
    what = f"input {node.name!r}" if node.op == "placeholder" else f"op {op_name(node.target)!r}"
    return f"{what}{node_place(node)} cannot be cut: {state.why}"


def notes(flow: Flow) -> list[str]:
    """What was repaired."""
    found = []
    if flow.given:
        ops = ", ".join(dict.fromkeys(op_name(node.target) for node in flow.given.values()))
        found.append(f"counts of the whole batch are given to every share ({ops})")
    if flow.summed:
        found.append(SUMMED)
    elif flow.scaled:
        found.append(ADDED)
    return found


def exceptions(flow: Flow) -> list[str]:
    """What a share sees otherwise than the batch, as in gradient accumulation."""
    found = []
    if flow.normed:
        found.append(
            f"batch norm ({len(flow.normed)} in all) sees micro-batches one by one, as in "
            "gradient accumulation"
        )
    if flow.random:
        found.append(
            f"random numbers ({len(flow.random)} ops, such as dropout) are drawn anew for every "
            "micro-batch"
        )
    return found
