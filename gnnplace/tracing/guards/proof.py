"""Proof that the recording of a user's step does everything that the step does.

Runs on tensors without numbers give every value a number (`numbering`). One run is the user's own
step, forward and backward, on the real parameters, so that hooks of all kinds, autocast and
checkpoints take effect. The other is the recording, on its own leaves. If the step sets attributes,
the next forward pass runs too, from the state that the first one left, and again with counters set
far ahead. If outputs, gradients, parameters, buffers and inputs have equal numbers, nothing is
lost, now and in later steps; no list of special cases is needed. Only a step that is refused runs
once more, to find the module, the line and the message.

If a hook reads numbers, the runs use real tensors. The proof is for one device; rules say what
splitting, sharding and recomputation do to the calls. O(ops), two steps.
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
from gnnplace.tracing.guards.alike import StandIn, replace_by_stand_ins
from gnnplace.tracing.guards.attributes import Attributes
from gnnplace.tracing.guards.failures import describe_number_dependence
from gnnplace.tracing.guards.numbering import UNLIKE, Numbering
from gnnplace.tracing.guards.watch import other_generators
from gnnplace.tracing.step import StepModule
from gnnplace.tracing.tensors import find_tensors, get_storage_key
from gnnplace.tracing.user_code import is_users

PARAMETER = "parameter"
BUFFER = "buffer"
INPUT = "input"
LATER = 10**6
"""Steps that counters are turned on by hand, past what warms up."""
LOST = "a plan repeats calls of torch alone and would lose it"
HOOK = "take it off, and change the gradients between the step and the optimizer's"
NOTED = (
    (
        torch.Tensor,
        "register_hook",
        "a hook of a tensor",
        "write what it does as an operation",
    ),
    (
        torch.autocast,
        "__enter__",
        "torch.autocast",
        "give the plan a precision, as bf16-mixed",
    ),
    (
        torch.Tensor,
        "requires_grad_",
        "a change of requires_grad",
        "set it before planning",
    ),
    (
        nn.Module,
        "requires_grad_",
        "a change of requires_grad",
        "set it before planning",
    ),
    (
        torch.autograd.graph.saved_tensors_hooks,
        "__enter__",
        "hooks of saved tensors",
        "leave them out: a plan recomputes",
    ),
    (
        CheckpointFunction,
        "apply",
        "torch.utils.checkpoint with use_reentrant=True",
        "give use_reentrant=False",
    ),
)
"""Calls that are noted while a refused step runs for words: owner, name, words and remedy."""
Numbers = dict[str, int | None]
Replay = Callable[[Numbering, Sequence[torch.Tensor], Mapping[str, torch.Tensor]], Any]
"""Runs a recording on inputs, and on parameters and buffers by name; returns its output."""


@dataclass(frozen=True)
class Proof:
    """Facts about a recording that is all of its step.

    Attributes:
        random: recorded calls that draw random numbers, as often as they draw.
        statistics: buffers that take what they hold from the batch, those of batch norms aside.
        changed: buffers that the step changes.
    """

    random: tuple[int, ...] = ()
    statistics: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def lasting(names: str) -> str:
    """Return the error for attributes by which the next step is another one."""
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
    """Compare a recording with the step that it is of.

    Args:
        step: model, loss and inputs; left as they are.
        replay: the recording.
        name: name of the model, for messages.
        mode: makes tensors without numbers; None: the step needs numbers.
        trains: refuse a step whose backward pass fails; else its forward pass is compared alone.

    Raises:
        CaptureError: what of the step would be lost, where, and how to mend it.
    """
    fake = any(isinstance(t, FakeTensor) for t in step.parameters())
    attempts = [(mode, True)]
    if not fake and mode is not None:
        attempts.append((None, True))  # a hook may ask for numbers
    if not trains:
        attempts.append((mode, False))
    failed = ""
    for attempt, backward in attempts:
        try:
            return _Judge(_Runs(step, attempt, backward), replay, name).proof()
        except CaptureError:
            raise
        except Exception as error:
            failed = (str(error).strip().splitlines() or ["no message"])[0]
    raise CaptureError(
        f"{name}: its backward pass cannot be followed; it must run in plain PyTorch: {failed}"
    )


def prove_apart(
    step: StepModule,
    replay: Replay,
    name: str,
    mode: FakeTensorMode,
    stands: Mapping[str, StandIn],
) -> Proof | None:
    """Return the proof of a recording without some layers, which are `alike` others.

    Args:
        step: The step, as `prove` takes it.
        replay: the recording, with the same layers left out.
        name: The name, as `prove` takes it.
        mode: makes tensors without numbers.
        stands: stand-ins of the layers, by their path in the step.

    Returns:
        The proof; None if there is none, and the whole step must be followed.
    """
    try:
        with replace_by_stand_ins(step, stands):
            return _Judge(_Runs(step, mode), replay, name).proof()
    except Exception:  # the whole step says what and where
        return None


def batch_statistics(step: StepModule) -> tuple[str, ...]:
    """Return buffers that a forward pass fills from its batch, those of batch norms aside."""
    fakes = [t for t in step.parameters() if isinstance(t, FakeTensor)]
    if fakes:
        mode = fakes[0].fake_mode
    else:
        mode = make_fake_mode()
    runs = _Runs(step, mode, backward=False)
    with runs.restored():
        run, outcome = runs.original()
    return _statistics(run, outcome)


def _statistics(run: _Run, outcome: Numbers) -> tuple[str, ...]:
    """Return the buffers that a run filled from its batch, batch norms aside."""
    from_batch = run.batch - run.moments
    changed = [key for key, number in run.initial.items() if outcome.get(key) != number]
    return tuple(
        key.split("'")[1]
        for key in changed
        if key.startswith(BUFFER) and outcome.get(key) in from_batch
    )


def differs_later(step: StepModule, mode: FakeTensorMode | None) -> bool:
    """Return whether the next step, or one after many, has other outputs than the first one.

    A table that the first step makes of constants and keeps has a number that the next step finds
    again, so that it may be computed anew in every step.

    Args:
        step: The step, as `prove` takes it.
        mode: makes tensors without numbers; None: the step needs numbers.
    """
    runs = _Runs(step, mode, backward=False)
    with runs.restored():
        modules = {id(m): m for m in step.modules()}
        counters_before = _counters(step)
        run, outcome = runs.original()
        counters = _counters(step)
        counting = [
            k for k, value in counters.items() if counters_before.get(k, value) != value
        ]
        # The next step, and one whose counters are past what warms up.
        for steps_ahead in (0, LATER) if counting else (0,):
            for owner, key in counting:
                modules[owner].__dict__[key] += steps_ahead
            try:
                _, next_outcome = runs.original(since=run)
            except Exception:
                return True
            if any(
                outcome[k] != v
                for k, v in next_outcome.items()
                if k.startswith("output")
            ):
                return True
    return False


class _Run(Numbering):
    """The numbers of one run, those of the state before it, and layouts of gradients."""

    initial: Numbers
    layouts: dict[str, torch.layout]


def _state(step: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield kind, name and tensor of parameters and buffers."""
    for kind, named in (
        (PARAMETER, step.named_parameters()),
        (BUFFER, step.named_buffers()),
    ):
        yield from (
            (kind, name.removeprefix("model."), tensor) for name, tensor in named
        )


@dataclass(frozen=True)
class _Runs:
    """Runs of a step and of its recording; `mode` is None for real tensors."""

    step: StepModule
    mode: FakeTensorMode | None
    backward: bool = True

    def original(
        self, places: Callable[[], str] | None = None, since: Numbering | None = None
    ) -> tuple[_Run, Numbers]:
        """Run the user's step as it is, on its own parameters.

        Args:
            places: called for every op, returns where the user's code is.
            since: an earlier run, whose constants this one may find again.

        Returns:
            The run, and numbers after it; none if the step cannot be recorded.
        """
        with without_numbers(self.mode), torch.enable_grad():
            inputs, run = self._begin(places)
            if since is not None:
                run.carry(since)
            with run:
                run.initial = {
                    f"{k} {name!r}": run.number(t) for k, name, t in _state(self.step)
                }
                with _seeding(run), other_generators() as generators:
                    output = self.step(*inputs)
                if generators:
                    run.faults["other"] = (
                        f"the code draws from {generators[0]}: {UNLIKE}"
                    )
                    return run, {}  # such numbers may have no backward pass here
                if run.asked[1]:
                    place, op = run.asked
                    run.faults["asked"] = (
                        f"its forward pass{place}: {describe_number_dependence(op, place)}"
                    )
                return run, self._end(run, output, inputs, list(_state(self.step)))

    def recording(self, replay: Replay) -> tuple[_Run, Numbers]:
        """Run the recording, on leaves of its own; return the run, and numbers after it."""
        with without_numbers(self.mode), torch.enable_grad():
            inputs, run = self._begin()
            with run:
                state = [
                    (kind, name, tensor.detach().requires_grad_(tensor.requires_grad))
                    for kind, name, tensor in _state(self.step)
                ]
                output = replay(run, inputs, {name: t for _, name, t in state})
                run.label = None
                return run, self._end(run, output, inputs, state)

    def _begin(
        self, places: Callable[[], str] | None = None
    ) -> tuple[list[torch.Tensor], _Run]:
        """Return inputs of a run, and its numbering, which knows them and the state by name."""
        torch.clear_autocast_cache()
        make_input = torch.empty_like if self.mode else torch.clone
        inputs = [
            make_input(t.detach()).requires_grad_(t.requires_grad)
            for t in self.step.inputs()
        ]
        names: dict[int, Hashable] = {}
        for kind, name, t in _state(self.step):
            names.setdefault(get_storage_key(t), (kind, name))
        input_names = {
            get_storage_key(t): (INPUT, str(i)) for i, t in enumerate(inputs)
        }
        return inputs, _Run(
            input_names | names, frozenset(input_names.values()), places, self.mode
        )

    def _end(
        self,
        run: _Run,
        output: object,
        inputs: list[torch.Tensor],
        state: list[tuple[str, str, torch.Tensor]],
    ) -> Numbers:
        """Run the backward pass, and return the numbers of all that is there after it."""
        leaves = find_tensors(output)
        if self.backward:
            roots = [x for x in leaves if x.grad_fn is not None]
        else:
            roots = []
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])
        numbers: Numbers = {f"output {i}": run.number(t) for i, t in enumerate(leaves)}
        numbers |= {f"{kind} {name!r}": run.number(t) for kind, name, t in state}
        numbers |= {f"{INPUT} {i}": run.number(t) for i, t in enumerate(inputs)}
        gradients = {
            name: t.grad
            for kind, name, t in state
            if kind == PARAMETER and self.backward
        }
        run.layouts = {name: g.layout for name, g in gradients.items() if g is not None}
        return numbers | {
            f"gradient of {name!r}": None if g is None else run.number(g)
            for name, g in gradients.items()
        }

    @contextmanager
    def restored(self) -> Iterator[Attributes]:
        """Put back tables, attributes, gradients, flags and numbers after what is run within.

        Parameters that are sharded already have unsharded stand-ins meanwhile.
        """
        modules = list(self.step.modules())
        module_tables: list[dict[str, Any]] = [
            t for m in modules for t in (m._parameters, m._buffers)
        ]
        tables = [(table, dict(table)) for table in module_tables]
        tensors: list[tuple[torch.Tensor, torch.Tensor | None, bool]] = []
        saved_values: list[tuple[torch.Tensor, torch.Tensor]] = []
        memory: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        for _, _, tensor in _state(self.step):
            tensors.append((tensor, tensor.grad, tensor.requires_grad))
            memory.append((tensor, tensor.detach(), get_storage_key(tensor)))
            if self.mode is None:
                saved_values.append((tensor, tensor.detach().clone()))
        attributes = Attributes(self.step)
        try:
            for t, _, _ in tensors:
                t.grad = None
            self._unshard_parameters()
            with attributes.restored():
                yield attributes
        finally:
            for table, entries in tables:
                table.clear()
                table.update(entries)
            for t, data, storage in memory:
                if get_storage_key(t) != storage:
                    t.data = data
            for t, gradient, flag in tensors:
                t.grad = gradient
                if t.is_leaf:
                    t.requires_grad_(flag)
            with torch.no_grad():
                for t, values in saved_values:
                    t.copy_(values)

    def _unshard_parameters(self) -> None:
        """Put unsharded tensors in the place of parameters that are sharded."""
        stand_ins: dict[int, nn.Parameter] = {}
        for module in self.step.modules():
            table = module._parameters
            for name, parameter in table.items():
                if parameter is not None and hasattr(parameter, "placements"):
                    with self.mode or nullcontext():
                        unsharded = torch.zeros(
                            parameter.shape,
                            dtype=parameter.dtype,
                            device=parameter.device,
                        )
                    stand_in = stand_ins.setdefault(
                        id(parameter), nn.Parameter(unsharded, parameter.requires_grad)
                    )
                    table[name] = stand_in


@dataclass(frozen=True)
class _Judge:
    """The verdict on the runs of a step and of its recording."""

    runs: _Runs
    replay: Replay
    name: str

    def proof(self) -> Proof:
        """Return the facts about the recording.

        Raises:
            CaptureError: it has lost something of the step.
        """
        runs = self.runs
        with runs.restored() as attributes:
            run, outcome = runs.original()
        if fault := next(iter(run.faults.values()), ""):
            raise self._refusal(fault)
        if attributes.changed and differs_later(runs.step, runs.mode):
            names = ", ".join(
                repr(n.removeprefix("model.")) for n in attributes.changed[:3]
            )
            raise self._refusal(lasting(names))
        recording, differing = self._compare(outcome)
        if differing:
            raise self._refusal(self._cause(differing, recording))
        self._check_gradients(run)
        changed = {
            k: outcome[k]
            for k, number in run.initial.items()
            if outcome.get(k) != number
        }
        self._check_parameters(run, changed)
        random = tuple(k for k in recording.random if k is not None)
        buffers = tuple(key.split("'")[1] for key in changed if key.startswith(BUFFER))
        return Proof(random, _statistics(run, outcome), buffers)

    def _refusal(self, words: str) -> CaptureError:
        """Return an error of the model."""
        return CaptureError(f"{self.name}: {words}")

    def _compare(self, outcome: Numbers) -> tuple[_Run, list[str]]:
        """Return the recording's run, and the values that differ after it.

        The cache of fake tensors forgets which results of an op are one tensor; where something
        differs, both run once more without it, unless the step is another one each time.
        """
        runs = self.runs
        for exact in (False, True):
            if exact:
                with runs.restored():
                    if runs.original()[1] != outcome:
                        break
            with (
                patch.object(runs.mode, "cache_enabled", False)
                if exact
                else nullcontext()
            ):
                if exact:
                    with runs.restored():
                        _, outcome = runs.original()
                with runs.restored():
                    recording, recorded = runs.recording(self.replay)
            differing = [
                key for key, number in outcome.items() if recorded.get(key) != number
            ]
            if not differing or runs.mode is None:
                break
        return recording, differing

    def _check_gradients(self, run: _Run) -> None:
        """Refuse sparse gradients."""
        for parameter, layout in run.layouts.items():
            if layout != torch.strided:
                raise self._refusal(
                    f"parameter {parameter!r} has a sparse gradient, which processes cannot add "
                    "up; give sparse=False"
                )

    def _check_parameters(self, run: _Run, changed: Numbers) -> None:
        """Refuse a forward pass that changes parameters."""
        for key, number in changed.items():
            if key.startswith(PARAMETER):
                op = run.where.get(number or 0, ("", "its code"))[1]
                raise self._refusal(
                    f"the forward pass changes {key} ({op}), and every part of a plan would change "
                    "it by itself; leave it out (such as max_norm), or make it a buffer"
                )

    def _is_checkpointed(self) -> bool:
        """Return whether the step recomputes parts of itself by torch.utils.checkpoint."""
        regions: list[Any] = []
        original = read_private(checkpoint, REGION, "torch")

        def note_region(*args: object, **options: object) -> object:
            regions.append(args[0])
            return original(*args, **options)

        with (
            patch_private(checkpoint, REGION, note_region, "torch"),
            self.runs.restored(),
        ):
            self.runs.original()
        return bool(regions)

    def _cause(self, differing: list[str], recording: _Run) -> str:
        """Return what made a difference: a hook, a noted call, or the first other op.

        The step runs once more to find calls and ops.

        Args:
            differing: Values that differ.
            recording: The recording's run.
        """
        if len(differing) > 2:
            suffix = f" and {len(differing) - 2} more"
        else:
            suffix = ""
        values = f"({', '.join(differing[:2])}{suffix})"
        step = self.runs.step
        for kind, name, t in _state(step):
            if t._backward_hooks or getattr(t, "_post_accumulate_grad_hooks", None):
                return f"a hook of {kind} {name!r} {values}: {LOST}; {HOOK}"
        for path, module in step.named_modules():
            if module._backward_hooks or module._backward_pre_hooks:
                shown = path.removeprefix("model").lstrip(".") or "model"
                return f"a backward hook of module {shown!r} {values}: {LOST}; {HOOK}"
        if bound := next((key for key in differing if key.startswith(BUFFER)), ""):
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
        calls: list[tuple[str, str]] = []
        with self.runs.restored(), ExitStack() as stack:
            for owner, name, words, remedy in NOTED:
                stack.enter_context(_noting(owner, name, (words, remedy), calls, step))
            run, outcome = self.runs.original(lambda: _place(step))
        if calls:
            return f"{calls[0][0]} {values}: {LOST}; {calls[0][1]}"
        numbers = [n for n in map(outcome.get, differing) if n is not None]
        place, op = next(
            run.origins(numbers, recording.seen), ("", "what its code does")
        )
        return f"{op}{place} {values}: {LOST}; write it with functions of torch, not in vmap"


def _counters(step: nn.Module) -> dict[tuple[int, str], int]:
    """Return whole numbers among the plain attributes, by module and name."""
    named = ((id(m), key, v) for m in step.modules() for key, v in m.__dict__.items())
    return {(owner, key): v for owner, key, v in named if type(v) is int}


@contextmanager
def _seeding(run: _Run) -> Iterator[None]:
    """Note that code sets a seed."""

    def note_seed(seed: int) -> None:
        run.faults["seed"] = f"the code calls torch.manual_seed: {UNLIKE}"

    with patch.object(torch, "manual_seed", note_seed):
        yield


def _noting(
    owner: object,
    name: str,
    words: tuple[str, str],
    calls: list[tuple[str, str]],
    step: nn.Module,
) -> Any:
    """Return a patch that notes calls of a function by the user's code, with where they are."""
    original = getattr(owner, name)

    def call(*args: object, **options: object) -> Any:
        if place := _place(step):
            calls.append((f"{words[0]}{place}", words[1]))
        return original(*args, **options)

    return patch.object(
        owner, name, staticmethod(call) if inspect.ismethod(original) else call
    )


def _place(step: nn.Module) -> str:
    """Return module and line of the user's code that runs; empty where none of the step's does."""
    names = {
        id(m): n.removeprefix("model").lstrip(".") for n, m in step.named_modules()
    }
    frame = inspect.currentframe()
    module = ""
    line = ""
    while frame is not None and frame.f_code is not _Runs.original.__code__:
        owner = frame.f_locals.get("self")
        if (
            not module
            and isinstance(owner, nn.Module)
            and id(owner) in names
            and owner is not step
        ):
            module = (
                f" in module {names[id(owner)] or 'model'!r} ({type(owner).__name__})"
            )
        if not line and is_users(frame.f_code.co_filename):
            line = f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return module + line
