"""Whether what was recorded of a user's step is all that the step does.

Runs on tensors without numbers give every value a number (`numbering`): the user's own step,
forward and backward, on the real parameters, so that hooks of all kinds, autocast and checkpoints
act; and the recording, on leaves of its own. Where the step sets attributes, its next forward pass
follows from the state that the first one left, once more with its counters far ahead. Equal numbers
of outputs, gradients, parameters, buffers and inputs are a proof that nothing is lost, now and in
later steps: there is no list of kinds. Only what is refused runs once more, to find module, line
and words.

Where a hook asks for numbers the runs are on real tensors. A step is followed on one device: what
cutting, shards and recomputation do to its calls is for their own rules to say. O(ops),
two steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction

from gnnplace.errors import CaptureError
from gnnplace.foreign import patch_private, read_private
from gnnplace.torch_names import REGION, FakeTensor, FakeTensorMode
from gnnplace.tracing.fakes import make_fake_mode, without_numbers
from gnnplace.tracing.guards.alike import StandIn, left_out
from gnnplace.tracing.guards.attributes import Attributes
from gnnplace.tracing.guards.failures import is_users, on_numbers
from gnnplace.tracing.guards.numbering import UNLIKE, Numbering, storage_of, tensors_in
from gnnplace.tracing.guards.watch import other_generators
from gnnplace.tracing.step import StepModule

PARAMETER, BUFFER, INPUT = "parameter", "buffer", "input"
LATER = 10**6
"""Steps that counters are turned on by hand, past what warms up."""
LOST = "a plan repeats calls of torch alone and would lose it"
HOOK = "take it off, and change the gradients between the step and the optimizer's"
NOTED = (
    (torch.Tensor, "register_hook", "a hook of a tensor", "write what it does as an operation"),
    (torch.autocast, "__enter__", "torch.autocast", "give the plan a precision, as bf16-mixed"),
    (torch.Tensor, "requires_grad_", "a change of requires_grad", "set it before planning"),
    (nn.Module, "requires_grad_", "a change of requires_grad", "set it before planning"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__", "hooks of saved tensors",
     "leave them out: a plan recomputes"),
    (CheckpointFunction, "apply", "torch.utils.checkpoint with use_reentrant=True",
     "give use_reentrant=False"),
)  # fmt: skip
"""What is noted while a refused step runs for words: its owner, name, words and mend."""
Numbers = dict[str, int | None]
Replay = Callable[[Numbering, Sequence[torch.Tensor], Mapping[str, torch.Tensor]], Any]
"""Runs a recording on inputs, and on parameters and buffers by name; returns its output."""


@dataclass(frozen=True)
class Proof:
    """What is known of a recording that is the whole step.

    Attributes:
        random: recorded calls that draw random numbers, as often as they draw.
        statistics: buffers that take what they hold from the batch, those of batch norms aside.
        changed: buffers that the step changes.
    """

    random: tuple[int, ...] = ()
    statistics: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def lasting(names: str) -> str:
    """The words for attributes by which the next step is another one."""
    return (
        f"the forward pass sets {names}, and the next step would be another one for it; a "
        "captured step keeps tensors alone: register them as buffers"
    )


def prove(
    step: StepModule,
    replay: Replay,
    name: str,
    mode: FakeTensorMode | None,
    *,
    trains: bool = True,
) -> Proof:
    """Compares a recording with the step that it is of.

    Args:
        step: model, loss and inputs; left as they are.
        replay: the recording.
        name: of the model, for messages.
        mode: makes tensors without numbers; None: the step needs numbers.
        trains: refuse a step whose backward pass fails; else its forward pass is compared alone.

    Raises:
        CaptureError: what of the step would be lost, where, and how to mend it.
    """
    fake = any(isinstance(t, FakeTensor) for t in step.parameters())
    failed = ""
    attempts = [(mode, True), *[(None, True)] * (not fake and mode is not None)]
    for attempt, backward in [*attempts, *[(mode, False)] * (not trains)]:
        try:
            return _Judge(_Runs(step, attempt, backward), replay, name).proof()
        except CaptureError:
            raise
        except Exception as error:
            told = (str(error).strip().splitlines() or ["no message"])[0]
            failed = told
    raise CaptureError(
        f"{name}: its backward pass cannot be followed; it must run in plain PyTorch: {failed}"
    )


def proved_apart(
    step: StepModule,
    replay: Replay,
    name: str,
    mode: FakeTensorMode,
    stands: Mapping[str, StandIn],
) -> Proof | None:
    """What a proof finds where some layers are left out, which `alike` others have; None: nothing.

    Args:
        step: as of `prove`.
        replay: the recording, with the same layers left out.
        name: as of `prove`.
        mode: makes tensors without numbers.
        stands: what stands for them, by their path in the step.
    """
    try:
        with left_out(step, stands):
            return _Judge(_Runs(step, mode), replay, name).proof()
    except Exception:  # the whole step says what and where
        return None


def batch_statistics(step: StepModule) -> tuple[str, ...]:
    """Buffers that a forward pass fills from its batch, those of batch norms aside."""
    fakes = [t for t in step.parameters() if isinstance(t, FakeTensor)]
    mode = fakes[0].fake_mode if fakes else make_fake_mode()
    runs = _Runs(step, mode, backward=False)
    with runs.kept():
        mine, outcome = runs.own()
    return _statistics(mine, outcome)


def _statistics(run: _Run, outcome: Numbers) -> tuple[str, ...]:
    fresh = run.batch - run.moments
    kept = [key for key, before in run.before.items() if outcome.get(key) != before]
    return tuple(k.split("'")[1] for k in kept if k.startswith(BUFFER) and outcome.get(k) in fresh)


def differs_later(step: StepModule, mode: FakeTensorMode | None) -> bool:
    """Whether the next step, or one after many, has other outputs than the first one.

    A table that the first step makes of constants and keeps has a number that the next step finds
    again, so that it may be computed anew in every step.

    Args:
        step: as of `prove`.
        mode: makes tensors without numbers; None: the step needs numbers.
    """
    runs = _Runs(step, mode, backward=False)
    with runs.kept():
        modules = {id(m): m for m in step.modules()}
        counted = _counters(step)
        run, outcome = runs.own()
        now = _counters(step)
        turned = [key for key, value in now.items() if counted.get(key, value) != value]
        for far in (0, LATER) if turned else (0,):
            for owner, key in turned:
                modules[owner].__dict__[key] += far
            try:
                _, then = runs.own(since=run)
            except Exception:
                return True
            if any(outcome[k] != v for k, v in then.items() if k.startswith("output")):
                return True
    return False


class _Run(Numbering):
    """Numbers of one run, those of the state before it, and layouts of gradients."""

    before: Numbers
    layouts: dict[str, torch.layout]


def _state(step: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Kind, name and tensor of parameters and buffers."""
    for kind, named in ((PARAMETER, step.named_parameters()), (BUFFER, step.named_buffers())):
        yield from ((kind, name.removeprefix("model."), tensor) for name, tensor in named)


@dataclass(frozen=True)
class _Runs:
    """Runs of a step and of its recording; `mode` is None for real tensors."""

    step: StepModule
    mode: FakeTensorMode | None
    backward: bool = True

    def own(
        self, places: Callable[[], str] | None = None, since: Numbering | None = None
    ) -> tuple[_Run, Numbers]:
        """The user's step as it is, on its own parameters; after another one, if any."""
        with without_numbers(self.mode), torch.enable_grad():
            inputs, run = self._begin(places)
            if since is not None:
                run.carry(since)
            with run:
                run.before = {f"{k} {name!r}": run.number(t) for k, name, t in _state(self.step)}
                with _seeding(run), other_generators() as drawn:
                    output = self.step(*inputs)
                if drawn:
                    run.faults["other"] = f"the code draws from {drawn[0]}: {UNLIKE}"
                    return run, {}  # what was drawn may have no backward pass without numbers
                if run.asked[1]:
                    place, op = run.asked
                    run.faults["asked"] = f"its forward pass{place}: {on_numbers(op, place)}"
                return run, self._end(run, output, inputs, list(_state(self.step)))

    def again(self, replay: Replay) -> tuple[_Run, Numbers]:
        """The recording, on leaves of its own."""
        with without_numbers(self.mode), torch.enable_grad():
            inputs, run = self._begin()
            with run:
                state = [(kind, name, t.detach().requires_grad_(t.requires_grad))
                         for kind, name, t in _state(self.step)]  # fmt: skip
                output = replay(run, inputs, {name: t for _, name, t in state})
                run.label = None
                return run, self._end(run, output, inputs, state)

    def _begin(self, places: Callable[[], str] | None = None) -> tuple[list[torch.Tensor], _Run]:
        """Inputs of a run, and its numbering, which knows them and the state by name."""
        torch.clear_autocast_cache()
        stand = torch.empty_like if self.mode else torch.clone
        inputs = [stand(t.detach()).requires_grad_(t.requires_grad) for t in self.step.inputs()]
        names: dict[int, Hashable] = {}
        for kind, name, t in _state(self.step):
            names.setdefault(storage_of(t), (kind, name))
        given = {storage_of(t): (INPUT, str(i)) for i, t in enumerate(inputs)}
        return inputs, _Run(given | names, frozenset(given.values()), places, self.mode)

    def _end(
        self,
        run: _Run,
        output: Any,
        inputs: list[torch.Tensor],
        state: list[tuple[str, str, torch.Tensor]],
    ) -> Numbers:
        """The backward pass, and the numbers of all that is there after it."""
        leaves = tensors_in(output)
        roots = [x for x in leaves if x.grad_fn is not None] if self.backward else []
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])
        found: Numbers = {f"output {i}": run.number(t) for i, t in enumerate(leaves)}
        found |= {f"{kind} {name!r}": run.number(t) for kind, name, t in state}
        found |= {f"{INPUT} {i}": run.number(t) for i, t in enumerate(inputs)}
        learned = {name: t.grad for kind, name, t in state if kind == PARAMETER and self.backward}
        run.layouts = {name: g.layout for name, g in learned.items() if g is not None}
        return found | {
            f"gradient of {name!r}": None if g is None else run.number(g)
            for name, g in learned.items()
        }

    @contextmanager
    def kept(self) -> Iterator[Attributes]:
        """Leaves tables, attributes, gradients, flags and numbers as they were.

        Parameters that are sharded already have whole stand-ins meanwhile.
        """
        modules = list(self.step.modules())
        held: list[dict[str, Any]] = [t for m in modules for t in (m._parameters, m._buffers)]
        tables = [(table, dict(table)) for table in held]
        tensors = [(t, t.grad, t.requires_grad) for _, _, t in _state(self.step)]
        numbers = [(t, t.detach().clone()) for t, _, _ in tensors if self.mode is None]
        memory = [(t, t.detach(), storage_of(t)) for t, _, _ in tensors]
        attributes = Attributes(self.step)
        try:
            for t, _, _ in tensors:
                t.grad = None
            self._whole_stand_ins()
            with attributes.restored():
                yield attributes
        finally:
            for table, before in tables:
                table.clear()
                table.update(before)
            for t, own, storage in memory:
                if storage_of(t) != storage:
                    t.data = own
            for t, gradient, flag in tensors:
                t.grad = gradient
                if t.is_leaf:
                    t.requires_grad_(flag)
            with torch.no_grad():
                for t, kept in numbers:
                    t.copy_(kept)

    def _whole_stand_ins(self) -> None:
        made: dict[int, nn.Parameter] = {}
        for table in [m._parameters for m in self.step.modules()]:
            for name, p in table.items():
                if p is not None and hasattr(p, "placements"):
                    with self.mode or nullcontext():
                        whole = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
                    known = made.setdefault(id(p), nn.Parameter(whole, p.requires_grad))
                    table[name] = known


@dataclass(frozen=True)
class _Judge:
    """Says what the runs of a step and of its recording prove."""

    runs: _Runs
    replay: Replay
    name: str

    def proof(self) -> Proof:
        """What is known of the recording; refuses what it has lost."""
        runs = self.runs
        with runs.kept() as attributes:
            mine, outcome = runs.own()
        if fault := next(iter(mine.faults.values()), ""):
            raise self._refusal(fault)
        if attributes.changed and differs_later(runs.step, runs.mode):
            names = ", ".join(repr(n.removeprefix("model.")) for n in attributes.changed[:3])
            raise self._refusal(lasting(names))
        copy, odd = self._compared(outcome)
        if odd:
            raise self._refusal(self._cause(odd, copy))
        self._check_gradients(mine)
        changed = {k: outcome[k] for k, before in mine.before.items() if outcome.get(k) != before}
        self._check_parameters(mine, changed)
        random = tuple(k for k in copy.random if k is not None)
        buffers = tuple(key.split("'")[1] for key in changed if key.startswith(BUFFER))
        return Proof(random, _statistics(mine, outcome), buffers)

    def _refusal(self, words: str) -> CaptureError:
        return CaptureError(f"{self.name}: {words}")

    def _compared(self, outcome: Numbers) -> tuple[_Run, list[str]]:
        """The recording's run, and what it leaves otherwise.

        The cache of fake tensors forgets which results of an op are one tensor; where something
        differs, both run once more without it, unless the step is another one each time.
        """
        runs = self.runs
        for exact in (False, True):
            if exact:
                with runs.kept():
                    if runs.own()[1] != outcome:
                        break
            with patch.object(runs.mode, "cache_enabled", False) if exact else nullcontext():
                if exact:
                    with runs.kept():
                        _, outcome = runs.own()
                with runs.kept():
                    copy, found = runs.again(self.replay)
            odd = [key for key, number in outcome.items() if found.get(key) != number]
            if not odd or runs.mode is None:
                break
        return copy, odd

    def _check_gradients(self, mine: _Run) -> None:
        for parameter, layout in mine.layouts.items():
            if layout != torch.strided:
                raise self._refusal(
                    f"parameter {parameter!r} has a sparse gradient, which processes cannot add "
                    "up; give sparse=False"
                )

    def _check_parameters(self, mine: _Run, changed: Numbers) -> None:
        for key, number in changed.items():
            if key.startswith(PARAMETER):
                op = mine.where.get(number or 0, ("", "its code"))[1]
                raise self._refusal(
                    f"the forward pass changes {key} ({op}), and every part of a plan would change "
                    "it by itself; leave it out (such as max_norm), or make it a buffer"
                )

    def _is_checkpointed(self) -> bool:
        """Return whether the step recomputes parts of itself by torch.utils.checkpoint."""
        regions: list[Any] = []
        original = read_private(checkpoint, REGION, "torch")

        def noted(*args: Any, **options: Any) -> Any:
            regions.append(args[0])
            return original(*args, **options)

        with patch_private(checkpoint, REGION, noted, "torch"), self.runs.kept():
            self.runs.own()
        return bool(regions)

    def _cause(self, odd: list[str], copy: _Run) -> str:
        """What made a difference: a hook, what is noted in one more run, or the first other op."""
        told = f"({', '.join(odd[:2])}{f' and {len(odd) - 2} more' if len(odd) > 2 else ''})"
        step = self.runs.step
        for kind, name, t in _state(step):
            if t._backward_hooks or getattr(t, "_post_accumulate_grad_hooks", None):
                return f"a hook of {kind} {name!r} {told}: {LOST}; {HOOK}"
        for path, module in step.named_modules():
            if module._backward_hooks or module._backward_pre_hooks:
                shown = path.removeprefix("model").lstrip(".") or "model"
                return f"a backward hook of module {shown!r} {told}: {LOST}; {HOOK}"
        if bound := next((key for key in odd if key.startswith(BUFFER)), ""):
            if "'loss." in bound:
                return f"{bound} changes in a step, and a plan keeps the model's; move it there"
            if self._is_checkpointed():
                return (
                    f"{bound} changes within torch.utils.checkpoint, which runs again and changes "
                    "it twice; leave the checkpointing to the plan (recompute=full)"
                )
            return (
                f"{bound} is bound anew, or changed by what is no call of torch: {LOST}; change "
                "it in place"
            )
        noted: list[tuple[str, str]] = []
        with self.runs.kept(), ExitStack() as stack:
            for owner, name, words, mend in NOTED:
                stack.enter_context(_noting(owner, name, (words, mend), noted, step))
            mine, outcome = self.runs.own(lambda: _place(step))
        if noted:
            return f"{noted[0][0]} {told}: {LOST}; {noted[0][1]}"
        numbers = [n for n in map(outcome.get, odd) if n is not None]
        place, op = next(mine.origins(numbers, copy.seen), ("", "what its code does"))
        return f"{op}{place} {told}: {LOST}; write it with functions of torch, not in vmap"


def _counters(step: nn.Module) -> dict[tuple[int, str], int]:
    """Whole numbers among the plain attributes, by module and name."""
    named = ((id(m), key, v) for m in step.modules() for key, v in m.__dict__.items())
    return {(owner, key): v for owner, key, v in named if type(v) is int}


@contextmanager
def _seeding(run: _Run) -> Iterator[None]:
    def noted(seed: int) -> None:
        run.faults["seed"] = f"the code calls torch.manual_seed: {UNLIKE}"

    with patch.object(torch, "manual_seed", noted):
        yield


def _noting(
    owner: Any, name: str, words: tuple[str, str], noted: list[tuple[str, str]], step: nn.Module
) -> Any:
    """Notes calls of a function by the user's code, with where they are."""
    original = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        if place := _place(step):
            noted.append((f"{words[0]}{place}", words[1]))
        return original(*args, **options)

    return patch.object(owner, name, staticmethod(call) if inspect.ismethod(original) else call)


def _place(step: nn.Module) -> str:
    """Module and line of the user's code that runs; empty where none of the step's does."""
    names = {id(m): n.removeprefix("model").lstrip(".") for n, m in step.named_modules()}
    frame, module, line = inspect.currentframe(), "", ""
    while frame is not None and frame.f_code is not _Runs.own.__code__:
        owner = frame.f_locals.get("self")
        if not module and isinstance(owner, nn.Module) and id(owner) in names and owner is not step:
            module = f" in module {names[id(owner)] or 'model'!r} ({type(owner).__name__})"
        if not line and is_users(frame.f_code.co_filename):
            line = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return module + line
