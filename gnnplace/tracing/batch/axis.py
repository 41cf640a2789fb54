"""Follow the batch through a step, from the axis of its inputs to its loss.

The forward pass is exported twice: for a share and for the whole batch. Op by op, rules say how the
value of the whole batch follows from those of the shares (`state`): the rules by which layers are
split (`table`), rules of sums and scales (`rules`), and rules of ops that move the batch axis
(`shapes`). Shapes and constants that differ between the two graphs show where the batch and its
size are. No tensor's numbers are needed, so that fake tensors are enough.

Where a value would be another one in a share, the share's graph is repaired, if it can be:

* A value that follows from the batch alone (a count of unmasked words) is *given*: the share reads
  the whole batch's.
* A sum over examples is multiplied with M where it meets a mean, and as the loss.

So the mean of the shares' losses is the loss of the whole batch, and as the factors do not depend
on parameters, the mean of the shares' gradients is its gradient. Otherwise the op that mixes
examples is named. The idea of following a split axis from op to op is that of sharding propagation
(Xu et al., "GSPMD", arXiv:2105.04663). O(ops).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx

from gnnplace.torch_names import OpOverload
from gnnplace.tracing.batch import rules, shapes, table
from gnnplace.tracing.batch.cut import ATEN, insert
from gnnplace.tracing.batch.state import (
    MIXED,
    SPLIT,
    SUM,
    UNKNOWN,
    UNRULED,
    ChangeError,
    MixesError,
    Op,
    State,
    States,
    UndecidedError,
    flat_nodes,
    get_node_shape,
    is_one,
    only_state,
    op_name,
    same,
)
from gnnplace.tracing.batch.twins import (
    are_identical,
    attribute,
    depends_on_size,
    draws,
    get_called_graph,
    get_unsplit_shape,
    input_state,
    is_fake,
    is_graph,
    is_plain,
    list_changed_attributes,
    merge_state,
    replace_operand,
    state_by_shape,
    trains_norm,
    unknown,
)
from gnnplace.tracing.guards import is_static

RULES = {**table.RULES, **rules.RULES, **shapes.RULES}
GIVEN = "given_"
CALLS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Ops that call a graph of their own; their last argument but its operands is that graph."""
BOUNDED = ("clamp", "clamp_min", "clip", "max", "maximum")
SHAPED = ("zeros_like", "ones_like", "full_like", "empty_like")
"""Ops that read no number of their operand."""
NO_REPAIR = "it needs a number of the whole batch inside no_grad or autocast"
TRIES = 20  # changes of one op's operands; each has a few operands


@dataclass
class Flow:
    """The path of the batch through a step.

    Attributes:
        loss: State of the loss, after the repairs: a sum with scale 1/M, or what failed.
        given: Nodes of the whole batch's graph whose values every share reads, by the name of
            the buffer that they stand in.
        counted: Nodes of the share's graph whose values were replaced by those.
        scaled: Nodes that were multiplied by a factor, with it.
        normed: Batch norms that train.
        random: Ops that draw random numbers.
        assumed: Ops without a rule that were taken to keep examples apart.
        summed: Whether the loss of the whole batch is the sum of the shares', but for no repair.
        counts: Divisors that are taken to be equal in all shares; see `follow`.
    """

    loss: State = field(default_factory=lambda: State(UNKNOWN))
    given: dict[str, fx.Node] = field(default_factory=dict)
    counted: list[fx.Node] = field(default_factory=list)
    scaled: list[tuple[fx.Node, float]] = field(default_factory=list)
    normed: list[fx.Node] = field(default_factory=list)
    random: list[fx.Node] = field(default_factory=list)
    assumed: list[fx.Node] = field(default_factory=list)
    summed: bool = False
    counts: list[fx.Node] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return whether the mean of the shares' losses is the loss of the whole batch."""
        return not self.loss.is_failure


def follow(
    share: fx.GraphModule,
    whole: fx.GraphModule,
    count: int,
    *,
    outputs: bool = False,
    assume: bool = False,
    equal: bool = False,
) -> Flow:
    """Follow the batch through a forward graph, and repair the share's.

    Args:
        share: Graph of a share, which is changed.
        whole: Graph of the whole batch.
        count: The number of shares, M.
        outputs: The graph returns outputs, whose shares are to be parts of the batch's.
        assume: Take it that an op without a rule keeps examples apart; numbers must confirm it.
        equal: Give the share nothing: a count that divides is as large in every share, and other
            numbers of the whole batch are refused.
    """
    return _Follower(share, whole, count, _Mode(outputs, assume, equal)).flow()


@dataclass(frozen=True)
class _Mode:
    """Assumptions that `follow` may make; see its arguments."""

    outputs: bool
    assume: bool
    equal: bool = False


class _Follower:
    """The two graphs of a step, or of a graph that it calls, and states of the share's nodes."""

    def __init__(
        self,
        share: fx.GraphModule,
        whole: fx.GraphModule,
        count: int,
        mode: _Mode,
        outer: _Follower | None = None,
    ) -> None:
        self.share = share
        self.whole = whole
        self.count = count
        self.mode = mode
        self.states: dict[fx.Node, States] = {}
        self.base: dict[fx.Node, fx.Node] = {}
        self.changed = list_changed_attributes(share.graph)
        self.outer = outer
        self.result: Flow = Flow() if outer is None else outer.result

    def flow(self) -> Flow:
        """Return how the batch goes through the whole graph."""
        difference = self._find_difference()
        if difference is not None:
            self.result.loss = difference
            return self.result
        self._walk()
        self._end(self.share.graph.output_node())
        self.share.recompile()
        return self.result

    def results(self) -> States:
        """Return states of the results of a graph that another one calls."""
        difference = self._find_difference()
        if difference is not None:
            return difference
        self._walk()
        results = flat_nodes(self.share.graph.output_node())
        return tuple(self.states[node] for node in results)  # type: ignore[misc]

    def _find_difference(self) -> State | None:
        """Return where the graphs of the share and of the whole batch differ; None if nowhere."""
        nodes = list(self.share.graph.nodes)
        twins = list(self.whole.graph.nodes)
        culprit = next(
            (a for a, b in zip(nodes, twins, strict=False) if not are_identical(a, b)),
            None,
        )
        if culprit is None and len(nodes) == len(twins):
            return None
        why = "the model does something else for a batch of another size"
        return State(UNKNOWN, culprit=culprit or nodes[-2], why=why)

    def _walk(self) -> None:
        """Find the states of all nodes, in order."""
        for node, twin in zip(
            self.share.graph.nodes, list(self.whole.graph.nodes), strict=False
        ):
            if node.op != "output" and node not in self.states:
                self.states[node] = self._state(node, twin)

    def _end(self, output: fx.Node) -> None:
        """Make the loss a mean over the shares, or check outputs as parts of the batch's."""
        if self.mode.outputs:
            self.result.loss = self._outputs(flat_nodes(output))
            return
        loss = flat_nodes(output)[0]
        state = only_state(self.states[loss])
        if state.kind == SPLIT:
            state = State(
                UNKNOWN, culprit=loss, why="the loss has the batch as an axis"
            )
        if state.kind == SUM and not is_one(state.scale * self.count):
            is_repaired = bool(self.result.given or self.result.scaled)
            self.result.summed = is_one(state.scale) and not is_repaired
            self._change(output, loss, state.scale * self.count)
            state = state.scaled(1 / (state.scale * self.count))
        self.result.loss = state

    def _outputs(self, nodes: list[fx.Node]) -> State:
        """Return whether outputs are parts of the batch's, as a state."""
        why = "an output is a sum over the examples"
        for node in nodes:
            state = only_state(self.states[node])
            if state.is_failure:
                return state
            if state.kind == SUM or not is_one(state.scale):
                return State(MIXED, culprit=node, why=why)
        if self.result.given or self.result.scaled:
            return State(
                UNKNOWN, culprit=nodes[0], why="an output needs the whole batch"
            )
        return same()

    def _state(self, node: fx.Node, twin: fx.Node) -> States:
        """Return the state of a node, or of each of its results."""
        if node.op == "placeholder":
            return input_state(node, twin, self.count)
        if node.op == "get_attr":
            return self._attribute_state(node, twin)
        if node.target is operator.getitem:
            source, index = node.args
            source_state = self.states[source]  # type: ignore[index]
            if isinstance(source_state, tuple):
                return source_state[index]  # type: ignore[index]
            return source_state
        if is_static(node):
            return same(from_batch=True)
        if not isinstance(node.target, OpOverload):
            return self._inside(node, twin)
        state = self._apply_rule(node, twin)
        self._alias(node, state)
        return state

    def _attribute_state(self, node: fx.Node, twin: fx.Node) -> State:
        """Return the state of a parameter, buffer, constant or called graph."""
        share_value = attribute(self.share, str(node.target))
        whole_value = attribute(self.whole, str(twin.target))
        if isinstance(share_value, fx.GraphModule):
            return same(from_batch=True)
        is_parameter = isinstance(share_value, torch.nn.Parameter)
        from_batch = not is_parameter and node.target not in self.changed
        if share_value is whole_value or (
            is_parameter and share_value.shape == whole_value.shape
        ):
            return same(from_batch)
        if share_value.shape != whole_value.shape:
            return State(UNKNOWN, culprit=node, why="its shape depends on the batch")
        if (
            is_fake(share_value)
            or is_fake(whole_value)
            or torch.equal(share_value, whole_value)
        ):
            return same(from_batch)
        return State(
            MIXED,
            from_batch=from_batch,
            culprit=node,
            why="it depends on the size of the batch",
        )

    def _inside(self, node: fx.Node, twin: fx.Node) -> States:
        """Return states of an op that calls another graph, as `torch.no_grad` and `autocast` do."""
        share = get_called_graph(self.share, node)
        full = get_called_graph(self.whole, twin)
        if share is None or full is None or op_name(node.target) not in CALLS:
            return State(UNKNOWN, culprit=node, why=UNRULED)
        nested = _Follower(share, full, self.count, self.mode, self)
        operands = [
            n
            for n in node.args
            if isinstance(n, fx.Node) and not is_graph(self.share, n)
        ]
        slots = share.graph.find_nodes(op="placeholder")
        nested.states = {
            s: self.states[n] for s, n in zip(slots, operands, strict=True)
        }
        return nested.results()

    def _apply_rule(self, node: fx.Node, twin: fx.Node) -> States:
        """Return the state that the op's rule gives, with its operands changed as it asks for."""
        for _ in range(TRIES):
            op = Op(node, twin, self.states, self.count)
            try:
                return self._checked(op, self._follow_by_rule(op))
            except ChangeError as change:
                if self.mode.equal and change.factor is None:
                    return self._get_ungiven_state(node, change.operand)
                if self.outer is not None:
                    return State(
                        UNKNOWN, from_batch=op.from_batch, culprit=node, why=NO_REPAIR
                    )
                self._change(
                    node, change.operand, change.factor, op.find_twin(change.operand)
                )
            except MixesError as error:
                return State(
                    MIXED, from_batch=op.from_batch, culprit=node, why=str(error)
                )
            except UndecidedError as error:
                return self._assume_states(op, str(error))
        return State(UNKNOWN, culprit=node, why="its operands cannot be repaired")

    def _get_ungiven_state(self, node: fx.Node, operand: fx.Node) -> State:
        """Return the state of an op that needs a number of the batch and is not given it."""
        maker = op_name(operand.target)
        why = (
            f"it reads what {maker!r} makes of the whole batch; a share may divide by a sum over "
            "the examples, and by nothing else of it"
        )
        return State(MIXED, culprit=node, why=why)

    def _assume_states(self, op: Op, why: str) -> States:
        """Return UNKNOWN, or, with `assume`, the states that the result shapes imply."""
        failed = State(UNKNOWN, from_batch=op.from_batch, culprit=op.node, why=why)
        if not self.mode.assume:
            return failed
        states = tuple(
            state_by_shape(share, full, op, failed) for share, full in op.shapes
        )
        if not any(state.is_failure for state in states):
            self.result.assumed.append(op.node)
        if isinstance(op.node.meta.get("val"), list | tuple):
            return states
        return states[0]

    def _follow_by_rule(self, op: Op) -> States:
        """Return the state that a rule gives.

        Raises:
            ChangeError, MixesError, UndecidedError: see `Op` and the rules.
        """
        self._note(op)
        # An operand that failed fails the op, unless its value does not matter or can be given.
        for node in op.operands:
            state = op.state(node)
            if state.is_failure:
                if op.name in SHAPED:
                    return table.fresh(op)
                if state.from_batch and get_node_shape(node) == get_node_shape(
                    op.find_twin(node)
                ):
                    raise ChangeError(node, None)
                return State(
                    state.kind,
                    from_batch=op.from_batch,
                    culprit=state.culprit,
                    why=state.why,
                )
        if is_plain(op):
            return table.each(op, same(op.from_batch))
        if self.mode.equal and (counted := self._follow_count(op)) is not None:
            return counted
        if depends_on_size(op):
            raise MixesError("a number in it depends on the size of the batch")
        rule = RULES.get(op.name)
        if rule is None and rules.is_elementwise(op.node.target):
            rule = rules.elementwise
        if rule is None:
            raise UndecidedError(UNRULED)
        return rule(op)

    def _follow_count(self, op: Op) -> State | None:
        """Return the state of a bounded count, or of what a count divides; None of other ops."""
        bounds = [op.args.get(name) for name in ("min", "max")]
        passes_counts = all(
            x is None or isinstance(x, fx.Node) or x <= 1 for x in bounds
        )
        if op.name in BOUNDED and passes_counts and self._is_count(op.operands[0]):
            return op.state(op.operands[0])
        divisor = op.args.get("other")
        if (
            op.name not in rules.DIVISIONS
            or not isinstance(divisor, fx.Node)
            or not self._is_count(divisor)
        ):
            return None
        self.result.counts.append(divisor)
        states = {
            **self.states,
            divisor: same(from_batch=True).scaled(op.state(divisor).scale * self.count),
        }
        return rules.follow_quotient(Op(op.node, op.twin, states, self.count))

    def _is_count(self, node: fx.Node) -> bool:
        """Return whether a number is a sum over the examples that inputs alone make."""
        state = self.states[node]
        maker = node
        if (
            not isinstance(state, State)
            or state.kind != SUM
            or not state.from_batch
            or get_node_shape(node)
        ):
            return False
        while (name := op_name(maker.target)) in (*rules.UNARY, *BOUNDED):
            maker = maker.all_input_nodes[0]
        return name in (*rules.ADDITIVE, "mean")

    def _note(self, op: Op) -> None:
        """Note an op that trains batch norm or draws random numbers."""
        if trains_norm(op) and op.node not in self.result.normed:
            self.result.normed.append(op.node)
        if draws(op) and op.node not in self.result.random:
            self.result.random.append(op.node)

    def _checked(self, op: Op, state: States) -> States:
        """Return the state; random numbers do not follow from the batch.

        Raises:
            UndecidedError: the shapes do not agree with it.
        """
        if isinstance(state, tuple):
            states = state
        else:
            states = (state,) * len(op.shapes)
        for result_state, (share, full) in zip(states, op.shapes, strict=False):
            if (
                not result_state.is_failure
                and get_unsplit_shape(result_state, share, self.count) != full
            ):
                raise UndecidedError(
                    f"its rule does not fit its shape ({result_state.kind})"
                )
        if draws(op):
            return table.each(op, unknown(states[0]))
        return state

    def _alias(self, node: fx.Node, state: States) -> None:
        """Note a view; give a tensor that is changed in place its state, and its bases theirs."""
        if not isinstance(node.target, OpOverload) or not node.args:
            return
        first = node.args[0]
        if not isinstance(first, fx.Node):
            return
        if any(r.alias_info is not None for r in node.target._schema.returns):
            self.base[node] = first
        if not node.target._schema.is_mutable or not node.target._schema.name.endswith(
            "_"
        ):
            return
        self.states[first] = state
        while (first := self.base.get(first)) is not None:  # type: ignore[assignment]
            self.states[first] = merge_state(self.states[first], state, node)

    def _change(
        self,
        node: fx.Node,
        operand: fx.Node,
        factor: float | None,
        twin: fx.Node | None = None,
    ) -> None:
        """Let a node read another operand: given, or multiplied."""
        if factor is not None:
            new = self._multiply(node, operand, factor)
        else:
            assert twin is not None
            new = self._make_given(node, operand, twin)
        replace_operand(node, operand, new)

    def _multiply(self, node: fx.Node, operand: fx.Node, factor: float) -> fx.Node:
        """Return an operand times a factor."""
        is_whole = float(factor).is_integer()
        new = insert(
            self.share.graph,
            node,
            ATEN.mul.Tensor,
            operand,
            int(factor) if is_whole else factor,
        )
        self.states[new] = only_state(self.states[operand]).scaled(1 / factor)
        self.result.scaled.append((operand, factor))
        return new

    def _make_given(self, node: fx.Node, operand: fx.Node, twin: fx.Node) -> fx.Node:
        """Return the whole batch's value of an operand, as a buffer of the share's graph."""
        name = next(
            (
                n
                for n, twin_of_name in self.result.given.items()
                if twin_of_name is twin
            ),
            None,
        )
        if name is None:
            name = f"{GIVEN}{len(self.result.given)}"
            self.result.given[name] = twin
            self.result.counted.append(operand)
            value = operand.meta["val"]
            self.share.register_buffer(
                name, torch.zeros(value.shape, dtype=value.dtype)
            )
        with self.share.graph.inserting_before(node):
            new = self.share.graph.get_attr(name)
        new.meta["val"] = operand.meta["val"]
        self.states[new] = same(from_batch=True)
        return new
