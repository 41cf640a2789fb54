"""`PlanRunner`: a model that trains as a plan says, one process of it.

Every process makes the same calls in the same order: `step`, `clip_grad_norm_`, the optimizer's
step, and the state that goes into a checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.errors import ExecutionError, InputError, MismatchError
from gnnplace.plans import Counts, PlanFile, find_counts
from gnnplace.run.planned.batches import BatchForm
from gnnplace.run.planned.executor import Executor
from gnnplace.run.planned.local import Marks, plainly, unmark
from gnnplace.run.planned.parameters import LocalParameter, Parameters
from gnnplace.run.planned.seats import Seat
from gnnplace.run.planned.stages import StagedModel
from gnnplace.run.planned.weights import LossScale, find_loss_scale
from gnnplace.run.planned.whole import gather_weights, note_dropped
from gnnplace.tracing import MEMORY, STATE, Fingerprint

EXTRA = "_extra_state"
"""What `torch.nn.Module.state_dict` calls what a module gives by `get_extra_state`."""


@dataclass(eq=False)
class PlanRunner:
    """A model on the processes of a plan; see `JointPlan.apply`.

    Attributes:
        file: what the plan's file says.
        model: the user's; it has this process's parameters only, the others are on "meta".
        parameters_here: the parameters that this process holds.
        executor: runs the actions of this process's rank.
        form: what a batch is.
        seed: The seed of random numbers, the same in all processes.
        staged: The model's calls in stages, and which ranks have which of its tensors.
        recorded: what the calls take for granted of the model.
        marks: tensors of which no number is made, where the model is in parts.
        steps: The number of steps that were made.
        nothing: what an optimizer gets where there is nothing to train.
        loss_scale: The loss scale, if the precision needs one; a step whose gradients are not
            finite leaves none, so that the optimizer does nothing.
        counts: what the loss is a mean over, where that is no number of examples.
    """

    file: PlanFile
    model: nn.Module
    parameters_here: Parameters
    executor: Executor
    form: BatchForm
    seed: int
    staged: StagedModel
    recorded: Fingerprint | None = None
    marks: Marks = field(default_factory=Marks)
    steps: int = 0
    nothing: nn.Parameter = field(default_factory=lambda: nn.Parameter(torch.empty(0)))
    loss_scale: LossScale | None = field(init=False)
    counts: Counts | None = field(init=False)

    def __post_init__(self) -> None:
        self.loss_scale = find_loss_scale(self.file.precision)
        several = self.file.batch > self.file.microbatch_size
        self.counts = find_counts(self.staged.graph) if several else None

    @property
    def replica(self) -> int:
        """Return the index of this process's replica, which is that of its share of a batch."""
        return self.parameters_here.seat.replica

    @property
    def replicas(self) -> int:
        """Return the number of replicas, and so of shares of a batch."""
        return self.parameters_here.seat.replicas

    @property
    def microbatches(self) -> int:
        """Return M, the number of micro-batches of a share."""
        return self.file.batch // (self.file.microbatch_size * self.replicas)

    @property
    def examples(self) -> int:
        """Return the number of examples of a share."""
        return self.microbatches * self.file.microbatch_size

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what this process's optimizer updates: its parts of its stages' parameters."""
        for name, local in self.parameters_here.held.items():
            yield name, local.learned

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters without names; one of no elements if nothing is trained.

        No optimizer of torch takes an empty list, which a process has whose stages have no
        parameters or frozen ones alone.
        """
        yield from (parameter for _, parameter in self.named_parameters())
        if not any(parameter.requires_grad for _, parameter in self.named_parameters()):
            yield self.nothing

    def share(self, batch: object) -> object:
        """Return this replica's share of a whole batch.

        Args:
            batch: A batch like the example inputs, with as many examples; one with fewer can be
                evaluated, and is no step.

        Raises:
            InputError: more examples, or other inputs than the plan was applied to.
        """
        return self.form.share(batch, self.examples, self.replica, self.file.batch)

    @plainly
    def step(self, batch: object) -> torch.Tensor:
        """Make loss and gradients of one step; the optimizer's step is the caller's.

        Gradients of the step before are dropped. They are those of the mean of the losses of all
        micro-batches of all replicas.

        Args:
            batch: this replica's share of a batch (the same on all stages and shards of a replica),
                as the example inputs: a tensor, a tuple or a mapping.

        Returns:
            The loss, the same on every process.

        Raises:
            InputError: another number of examples than the plan has, or other inputs than it was
                applied to, here or on another process.
            MismatchError: the model changed since the plan was applied; names what.
            ExecutionError: another process has ended.
        """
        shares, self.executor.weights = self._agree_on_batch(batch)
        seat = self.parameters_here.seat
        count = self.microbatches
        draws = any(code.piece.draws for code in self.executor.code.values())
        if seat.device.type == "cuda":
            gpus = [seat.device]
        else:
            gpus = []
        note_dropped(self.parameters_here)
        self.parameters_here.begin()
        causes = (self.seed, self.steps, self.replica * count)
        if self.loss_scale is None:
            self.executor.factor = 1.0
        else:
            self.executor.factor = self.loss_scale.factor
        with torch.random.fork_rng(devices=gpus, enabled=draws):
            loss = self.executor.run(shares, causes) * self.executor.scale
        self.parameters_here.finish()
        if self.loss_scale is not None:
            self.loss_scale.update(self.parameters_here.unscale(self.loss_scale.factor))
        self.steps += 1
        if seat.shard > 0:
            loss = torch.zeros_like(loss)
        if seat.seats.count > 1:
            dist.all_reduce(loss)
        return loss.to(self.staged.loss_type).as_subclass(StepLoss)

    def _check_model(self) -> None:
        """Refuse a model that is not the recorded one any more; memory is the plan's own."""
        for kind, words in self.recorded.changes() if self.recorded else ():
            if kind not in (MEMORY, STATE):
                raise MismatchError(
                    f"step: {words}; apply the plan anew, to a model as it is then"
                )
        for name, local in self.parameters_here.held.items():
            if local.learned.requires_grad != local.leaf.requires_grad:
                raise MismatchError(
                    f"step: parameter {name!r}: its requires_grad has changed; apply the plan "
                    "anew, to a model as it is then"
                )

    @plainly
    def evaluate(self, batch: object) -> torch.Tensor:
        """Return the loss of a batch by the model in `eval` mode, without gradients.

        The model itself is called, micro-batch by micro-batch, within `gather_weights`; it is in
        the mode afterwards that it was in before. A batch of other lengths, or of fewer examples
        than the plan's, is called in one piece a replica; what is a mean over examples stays one.
        Where the loss is a mean over counts, every replica calls the model with the batch of all.

        Args:
            batch: this replica's share of a batch, as `step` takes it; of any number of examples.

        Returns:
            The loss, the same on every process.

        Raises:
            InputError: other inputs than the plan was applied to, no examples, or replicas whose
                losses are means over counts and whose batches have other lengths.
        """
        seat = self.parameters_here.seat
        autocast = next(iter(self.executor.code.values())).autocast
        shares, weights = self._agree_on_batch(batch, training=False)
        modes = [(module, module.training) for module in self.model.modules()]
        total = torch.zeros((), dtype=torch.float64, device=seat.device)
        self.model.eval()
        try:
            with self.whole_weights(), torch.no_grad(), autocast():
                for share, weight in zip(shares, weights, strict=True):
                    total += self.staged.recorded.layers.step(*share) * weight
        finally:
            for module, mode in modes:
                module.training = mode
        across = seat.owners[(False,) * len(seat.axes)]
        if across is not None:
            dist.all_reduce(total, group=across)
        return (total * self.executor.scale).to(self.staged.loss_type)

    def whole_weights(self) -> AbstractContextManager[None]:
        """Have the model whole on every process, to be called, within the context.

        All processes enter and leave it together. It takes the memory of the whole model; changes
        of these parameters are lost.
        """
        return gather_weights(
            self.model,
            self.parameters_here,
            self.staged.holders,
            self.staged.keepers,
            self.marks,
        )

    def _agree_on_batch(
        self, batch: object, *, training: bool = True
    ) -> tuple[list[tuple[torch.Tensor, ...]], list[float]]:
        """Return each micro-batch's tensors and weight, if no process refuses its batch.

        All processes call it together, those too that refuse.

        Raises:
            InputError, MismatchError: what is refused here, or that another process refuses.
            ExecutionError: another process has ended.
        """
        seat = self.parameters_here.seat
        has_other_shapes = False
        shares: list[tuple[torch.Tensor, ...]] = []
        refused: Exception | None = None
        try:
            shares, has_other_shapes = self._shares(batch, training)
        except Exception as error:
            # Whatever it is, the other processes must not wait for this one.
            refused = error
        if self.executor.scale != 1.0:
            counts = self.counts
        else:
            counts = None
        width = len(counts.counted) if counts else 0
        examples = torch.zeros(self.replicas, dtype=torch.float64)
        table = torch.zeros(
            self.replicas, self.microbatches, width, dtype=torch.float64
        )
        if refused is None and seat.rank == seat.shard == 0:
            examples[self.replica] = sum(self.form.examples(share) for share in shares)
            if counts is not None and not has_other_shapes:
                buffers = dict(self.model.named_buffers())
                table[self.replica] = torch.stack(
                    [counts.of(x, buffers) for x in shares]
                ).cpu()
        # One sum tells every process whether any refuses, evaluates or has other shapes.
        flags = torch.tensor(
            [float(refused is not None), float(not training), float(has_other_shapes)]
        )
        word = _sum_over_processes(
            torch.cat([flags.double(), examples, table.flatten()]), seat
        )
        refusals, evaluating, num_other_shapes = word[:3].tolist()
        if refused is not None:
            raise refused
        if refusals:
            raise InputError("step: another process refuses its batch, and says why")
        if evaluating not in (0.0, seat.seats.count * (not training)):
            raise InputError("step: some processes train while others evaluate")
        if num_other_shapes:
            total = float(word[3 : 3 + self.replicas].sum())
            if (
                self.counts is not None
                and self.replicas > 1
                and self.executor.scale != 1.0
            ):
                return self._gathered(shares), [
                    1.0 / self.executor.scale / self.replicas
                ]
            return shares, self._weigh_examples(shares, total)
        if counts is None:
            return shares, [1.0] * len(shares)
        table = word[3 + self.replicas :].view_as(table)
        weights = counts.weights(table.flatten(0, 1))
        return shares, weights[self.replica * self.microbatches :][: len(shares)]

    def _gathered(
        self, shares: list[tuple[torch.Tensor, ...]]
    ) -> list[tuple[torch.Tensor, ...]]:
        """Gather the batch of all replicas in one piece, whose loss may be a mean over any counts.

        Raises:
            InputError: it has no examples, or the replicas have other lengths.
        """
        seat = self.parameters_here.seat
        local_shares = [[x.cpu() for x in share] for share in shares]
        gathered: list[Any] = [None] * seat.seats.count
        sends = seat.rank == seat.shard == 0
        dist.all_gather_object(
            gathered, (self.replica, local_shares) if sends else None
        )
        by_replica = sorted(
            (x for x in gathered if x is not None), key=lambda pair: pair[0]
        )
        pieces = [piece for _, replica_shares in by_replica for piece in replica_shares]
        if not pieces:
            raise InputError("batch: it has no examples")
        try:
            return [tuple(x.to(seat.device) for x in self.form.joined(pieces))]
        except RuntimeError:
            raise InputError(
                "evaluate: the loss is a mean over counts, and the replicas' batches have other "
                "lengths; pad them to one"
            ) from None

    def _weigh_examples(
        self, shares: list[tuple[torch.Tensor, ...]], total: float
    ) -> list[float]:
        """Return what shares of unequal numbers of examples weigh in a mean over all of them."""
        if total == 0.0:
            raise InputError("batch: it has no examples")
        if self.executor.scale == 1.0:
            return [1.0] * len(shares)
        return [
            self.form.examples(share) / self.executor.scale / total for share in shares
        ]

    def _shares(
        self, batch: object, training: bool
    ) -> tuple[list[tuple[torch.Tensor, ...]], bool]:
        """Return each micro-batch's tensors, and whether their shapes are new.

        Raises:
            InputError: it is no batch of the plan's.
            MismatchError: the model changed since the plan was applied.
        """
        device = self.parameters_here.seat.device
        count = self.microbatches
        if training:
            self._check_model()
        if (
            torch.is_autocast_enabled(device.type)
            and "mixed" not in self.file.precision
        ):
            raise InputError(
                "step: autocast around it does nothing; plan with --precision bf16-mixed"
            )
        tensors = [x.to(device) for x in self.form.tensors(batch, training=training)]
        examples = self.form.examples(tensors)
        try:
            if examples != self.examples:
                raise InputError(
                    f"step: {examples} examples; a replica's share is {count} micro-batches of "
                    f"{self.file.microbatch_size}"
                )
            self.form.refuse_lengths(tensors)
        except InputError:
            if training:
                raise
            return [tuple(tensors)] if examples else [], True
        return self.form.cut(tensors, count), False

    @plainly
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale gradients so that the norm of all of them, over all stages, is at most so much.

        Returns:
            The norm before, as `torch.nn.utils.clip_grad_norm_` does.
        """
        total = self.parameters_here.squares()
        if self.parameters_here.seat.seats.count > 1:
            dist.all_reduce(total)
        norm = total.sqrt()
        factor = float((max_norm / (norm + 1e-6)).clamp(max=1.0))
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return norm.float()

    @plainly
    def gradients(self) -> dict[str, torch.Tensor]:
        """Return whole gradients of this process's stages by name; all of its rank must call it."""
        store = self.parameters_here
        return {
            name: store.whole(local, local.learned.grad)
            for name, local in store.held.items()
            if local.learned.grad is not None
        }

    @plainly
    def state_dict(self) -> dict[str, Any]:
        """Return whole parameters and buffers of this process's stages, by the model's names.

        What modules give by `get_extra_state` is there too, on the processes that hold their
        parameters; on all where they have none.

        Names of all processes together are the model's, those of tied tensors included, so that a
        checkpoint of them (`torch.distributed.checkpoint`) is one of the model, to be loaded under
        any other plan.
        """
        store = self.parameters_here
        state: dict[str, Any] = {
            name: store.whole(h, h.learned.detach()) for name, h in store.held.items()
        }
        for name, ranks in self.staged.keepers.items():
            if store.seat.rank in ranks:
                state[name] = self.model.get_buffer(name).detach().clone()
        for path, module in _with_extra_state(self.model):
            inside = [name for name in self.staged.holders if name.startswith(path)]
            if not inside or any(name in store.held for name in inside):
                state[path + EXTRA] = module.get_extra_state()
        return state | {
            name: state[first]
            for name, first in _find_tied(self.model).items()
            if first in state
        }

    @plainly
    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take parameters and buffers of this process's stages from whole tensors.

        Raises:
            InputError: an input is missing.
        """
        store = self.parameters_here
        for name, local in store.held.items():
            values = store.own(local, _entry(state, name)).view(local.part.shape)
            local.part.data.copy_(values)
            local.learned.data.copy_(values)
        for name, buffer in self.model.named_buffers():
            if name in state:
                buffer.copy_(state[name])
        for path, module in _with_extra_state(self.model):
            if path + EXTRA in state:
                module.set_extra_state(state[path + EXTRA])

    @plainly
    def optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer
    ) -> dict[str, torch.Tensor]:
        """Return the optimizer's state of whole parameters, by `NAME.KEY`.

        An optimizer that has made no step gets the state that its first step would begin with.
        """
        if not optimizer.state:
            _first_state(optimizer, self._parameters_read())
        store = self.parameters_here
        state: dict[str, torch.Tensor] = {}
        for name, local in store.held.items():
            for key, value in optimizer.state.get(local.learned, {}).items():
                unmark(value)
                is_split = (
                    isinstance(value, torch.Tensor) and value.shape == local.part.shape
                )
                if is_split:
                    whole_value = store.whole(local, value)
                else:
                    whole_value = torch.as_tensor(value).clone()
                state[f"{name}.{key}"] = whole_value
        return state

    @plainly
    @torch.no_grad()
    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, torch.Tensor]
    ) -> None:
        """Take the optimizer's state from what `optimizer_state_dict` gave, under any plan.

        A parameter that nothing reads has no gradient, and no state.
        """
        if not optimizer.state:
            _first_state(optimizer, self._parameters_read())
        store = self.parameters_here
        for name, local in store.held.items():
            entries = optimizer.state.get(local.learned, {})
            for key, value in entries.items():
                unmark(value)
                loaded = _entry(state, f"{name}.{key}")
                if isinstance(value, torch.Tensor) and value.shape == local.part.shape:
                    value.copy_(store.own(local, loaded).view(value.shape))
                elif isinstance(value, torch.Tensor):
                    value.copy_(loaded)
                else:
                    entries[key] = type(value)(loaded.item())

    def _parameters_read(self) -> set[nn.Parameter]:
        """Return what the optimizer updates of parameters that the stages here read."""
        names = {
            name
            for code in self.executor.code.values()
            for name in code.piece.parameters
        }
        return {
            local.learned
            for name, local in self.parameters_here.held.items()
            if name in names
        }

    def here(self) -> list[LocalParameter]:
        """Return the parameters on this process."""
        return list(self.parameters_here.held.values())


class StepLoss(torch.Tensor):
    """The loss of a step that was made; so is what is computed of it, such as `loss / 4`."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Refuse one more backward pass, as `InputError`."""
        if func in (torch.Tensor.backward, torch.autograd.grad):
            raise InputError(
                f"{func.__name__}: runner.step has made the gradients (and has scaled them in "
                "16-mixed), which runner.parameters() have; leave loss.backward(), "
                "torch.autograd.grad and GradScaler out"
            )
        return super().__torch_function__(func, types, args, kwargs or {})


def _sum_over_processes(word: torch.Tensor, seat: Seat) -> torch.Tensor:
    """Return the sum of a vector over all processes. [numbers]"""
    if seat.seats.count == 1:
        return word
    word = word.to(seat.device)
    try:
        dist.all_reduce(word)
    except RuntimeError as error:
        raise ExecutionError(
            "step: another process has ended or is out of reach; give all replicas equally "
            "many batches, and start all processes anew"
        ) from error
    return word.cpu()


def _entry(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in state:
        raise InputError(
            f"load: the state has no {name!r}; was it of another model or optimizer?"
        )
    return state[name]


def _with_extra_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield what names of a module's state begin with, and the module, of those that have more."""
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield f"{path}." if path else "", module


def _find_tied(model: nn.Module) -> dict[str, str]:
    """Return, for parameters and buffers with several names, the first by each later one."""
    first_names: dict[int, str] = {}
    tied: dict[str, str] = {}
    for list_named in (model.named_parameters, model.named_buffers):
        for name, tensor in list_named(remove_duplicate=False):
            first_name = first_names.setdefault(id(tensor), name)
            if first_name != name:
                tied[name] = first_name
    return tied


def _first_state(
    optimizer: torch.optim.Optimizer, read: Collection[nn.Parameter]
) -> None:
    """Make an optimizer's state by a step of no size and no gradient, then count no step."""
    parameters = list(
        itertools.chain(*(group["params"] for group in optimizer.param_groups))
    )
    gradients = [p.grad for p in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for p in parameters:
        if p.requires_grad and p in read:
            p.grad = torch.zeros_like(p)
        else:
            p.grad = None
    for group in optimizer.param_groups:
        group["lr"] = (
            0.0 if not isinstance(group["lr"], torch.Tensor) else group["lr"] * 0.0
        )
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient
    for entries in optimizer.state.values():
        for key, value in entries.items():
            if key == "step":
                entries[key] = torch.zeros_like(value) if torch.is_tensor(value) else 0
