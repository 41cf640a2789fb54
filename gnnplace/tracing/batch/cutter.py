"""Prove that the loss of a batch is the mean of its shares' losses, repair it, or refuse it.

`Cutter` is called with the exported forward pass of a share. It exports that of the whole batch
beside it, follows the batch through both (`axis`), and returns the share's graph, repaired where it
had to be.
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
from gnnplace.tracing.batch.cut import batch_axes, subgraph, write_out_counts
from gnnplace.tracing.batch.numbers import differences, step_differences
from gnnplace.tracing.batch.state import MIXED, UNKNOWN, State, op_name
from gnnplace.tracing.batch.twins import make_alike
from gnnplace.tracing.calls import UserCall, find_mixing, user_functions
from gnnplace.tracing.guards import node_place
from gnnplace.tracing.program import GIVEN, CutBatch, Program
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
    """The cut of one capture's batch.

    Args:
        step: Model, loss and inputs of the whole batch.
        share: The same of one share.
        count: The number of shares, M.
        accept: Whether another loss is accepted, as `UncutBatch` says.
        name: The name of the model, for messages.
        bare: Whether shares run as they are, without repairs, as in plans; notes say what that
            needs.

    Attributes:
        batch: How the batch is cut, after the call.
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
        self._step = step
        self._accept = accept
        self._name = name
        self._bare = bare
        axes = tuple(batch_axes(share.inputs(), step.inputs()))
        self.batch = CutBatch(count, axes, whole=step)
        if not self._is_fake:
            self.batch = replace(self.batch, shares=self.batch.cut(step.inputs()))
        self._uncut = self.batch
        self.repaired = False
        self._tried: Callable[[], str | None] | None = None

    @property
    def _is_fake(self) -> bool:
        """Return whether the batch has no numbers."""
        return any(isinstance(t, FakeTensor) for t in self._step.inputs())

    def __call__(
        self,
        exported: torch.export.ExportedProgram,
        export: Export,
        *,
        own: Sequence[str] = (),
        called: Sequence[UserCall] = (),
        fixed: str = "",
    ) -> fx.GraphModule:
        """Return the share's forward graph, repaired.

        Args:
            exported: The share's forward pass.
            export: Exports another module's forward pass.
            own: Hooks and functions whose gradients do not follow from the forward pass.
            called: Calls of autograd functions that were exported; all of `own`, if there are any.
            fixed: Why the graph that is returned will not be used, so that nothing can be
                repaired; counts must be equal then. Empty: it will.

        Raises:
            OtherLossError: the loss of the whole batch is not that of its shares.
        """
        self.batch = self._uncut
        self.repaired = False
        with user_functions() as uncut:
            share = _module(exported)
            full = _module(export(self._step))
        if called:
            self._tried = partial(find_mixing, uncut, called, self.batch.count)
        else:
            self._tried = None
        write_out_counts(full)
        flow = self._follow_batch(share, full)
        loss = flow.loss
        if loss.kind == UNKNOWN and self._has_numbers:
            # Take it that ops without a rule keep examples apart; the numbers decide below.
            share = _module(exported)
            flow = self._follow_batch(share, full, assume=True)
            if flow.loss.kind == MIXED:
                loss = flow.loss
        self.batch = replace(self.batch, exceptions=tuple(exceptions(flow)))
        if fixed and flow.holds and (flow.given or flow.scaled):
            self._leave(_module(exported), share, full, flow, fixed)
            self._confirm(own, full)
            return share
        if flow.holds:
            self._give(share, full, flow)
            self.repaired = bool(flow.given or flow.scaled)
            self.batch = replace(self.batch, notes=tuple(notes(flow)))
        else:
            share = _module(exported)
        self._judge(loss, self._numbers(full, share, loss))
        self._confirm(own, full)
        if self._bare and flow.holds:
            self._bear(_module(exported), full, bool(flow.assumed))
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
        difference = None
        if self._has_numbers:
            difference = differences(
                whole, share, self._step.inputs(), self.batch, uneven=False
            )
        if difference == "":
            counts = subgraph(repaired, flow.counted)
            self.batch = replace(self.batch, counts=counts, notes=(EVEN,))
            self.batch.check(self._step.inputs())
        else:
            self._judge(loss, difference)

    def _confirm(self, own: Sequence[str], whole: fx.GraphModule) -> None:
        """Compare gradients that do not follow from the forward pass with those of the shares."""
        if not own or self.batch.differs or (self.repaired and not self._bare):
            return
        difference = None
        if self._has_numbers:
            difference = step_differences(self._step, whole, self.batch)
        if difference is None and self._tried is not None:
            difference = self._tried()
        self._judge(State(UNKNOWN, why=f"its {own[0]} {UNSAID}"), difference)

    def _bear(self, share: fx.GraphModule, whole: fx.GraphModule, assume: bool) -> None:
        """Note what an unrepaired share needs; refuse one that needs a number of the batch."""
        flow = self._follow_batch(share, whole, assume=assume, equal=True)
        self._judge(flow.loss, None)
        conditions = [EVEN] if flow.counts else []
        self.batch = replace(self.batch, notes=(*conditions, *notes(flow)))

    def _follow_batch(
        self,
        share: fx.GraphModule,
        whole: fx.GraphModule,
        *,
        assume: bool = False,
        equal: bool = False,
    ) -> Flow:
        """Follow the batch through both graphs, with their counts written out."""
        write_out_counts(share)
        make_alike(share, whole)
        modes = {"outputs": self._step.forward_only, "assume": assume, "equal": equal}
        return follow(share, whole, self.batch.count, **modes)

    @property
    def _has_numbers(self) -> bool:
        """Return whether losses and gradients can be computed."""
        return not self._is_fake and not self._step.forward_only

    def _numbers(
        self, whole: fx.GraphModule, share: fx.GraphModule, loss: State
    ) -> str | None:
        """Return what is off in numbers; None if there are none, or they do not matter."""
        if not self._has_numbers or loss.kind == MIXED:
            return None
        return differences(whole, share, self._step.inputs(), self.batch)

    def _judge(self, loss: State, numbers: str | None) -> None:
        """Refuse an op that mixes examples, that numbers refute, or that neither way decides.

        Raises:
            OtherLossError: another loss is not accepted.
        """
        if not loss.is_failure and not numbers:
            return
        if loss.kind == UNKNOWN and numbers == "":
            note = f"{describe_failure(loss)}, but the numbers of the shares are those of the batch"
            self.batch = replace(self.batch, notes=(*self.batch.notes, note))
            return
        if loss.is_failure:
            why = describe_failure(loss)
        else:
            why = str(numbers)
        why += f", and {numbers}" if loss.is_failure and numbers else ""
        difference = f"{why}, so that the loss of the batch is not the mean of its shares' losses"
        if not self._accept:
            raise OtherLossError(
                f"{self._name}, {self.batch.count} micro-batches: {difference}; {MEND}"
            )
        self.batch = replace(self.batch, differs=difference)

    def _give(self, share: fx.GraphModule, whole: fx.GraphModule, flow: Flow) -> None:
        """Let the share read the values that the example gives it."""
        if not flow.given:
            return
        numbers = subgraph(whole, list(flow.given.values()))
        self.batch = replace(self.batch, given=tuple(flow.given), numbers=numbers)
        values = self.batch.values(self._step.inputs())
        for name, value in values.items():
            setattr(share, name, value.clone())


def _module(exported: torch.export.ExportedProgram) -> fx.GraphModule:
    """Return the module of an exported forward pass."""
    module = exported.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return module


def finish_share(program: Program, batch: CutBatch) -> Program:
    """Return the program of a share that knows its batch: example inputs, and what it is given."""
    names = [f"constant.{name}" for name in batch.given]
    inputs = {
        name: replace(entry, kind=GIVEN) if name in names else entry
        for name, entry in program.inputs.items()
    }
    used = tuple(name for name in names if name in inputs)
    if batch.numbers is not None and len(used) < len(names):  # some were made of others
        output = batch.numbers.graph.output_node()
        pairs = zip(names, output.args[0], strict=True)  # type: ignore[arg-type]
        output.args = (tuple(node for name, node in pairs if name in inputs),)
        batch.numbers.recompile()
    return replace(program, inputs=inputs, batch=replace(batch, given=used))


def describe_failure(state: State) -> str:
    """Return which op fails and what it does, in words."""
    node = state.culprit
    if node is None:
        return f"the loss cannot be cut: {state.why}"
    if node.op == "placeholder":
        subject = f"input {node.name!r}"
    else:
        subject = f"op {op_name(node.target)!r}"
    return f"{subject}{node_place(node)} cannot be cut: {state.why}"


def notes(flow: Flow) -> list[str]:
    """Return what was repaired."""
    lines = []
    if flow.given:
        ops = ", ".join(
            dict.fromkeys(op_name(node.target) for node in flow.given.values())
        )
        lines.append(f"counts of the whole batch are given to every share ({ops})")
    if flow.summed:
        lines.append(SUMMED)
    elif flow.scaled:
        lines.append(ADDED)
    return lines


def exceptions(flow: Flow) -> list[str]:
    """Return deviations of a share from the batch, as in gradient accumulation."""
    lines = []
    if flow.normed:
        lines.append(
            f"batch norm ({len(flow.normed)} in all) sees micro-batches one by one, as in "
            "gradient accumulation"
        )
    if flow.random:
        lines.append(
            f"random numbers ({len(flow.random)} ops, such as dropout) are drawn anew for every "
            "micro-batch"
        )
    return lines
