"""Encoders of users: described in a checkpoint, made from that, and tried before training.

A description is what Lightning's recipes write: ``class_path`` and ``init_args``, whose values are
plain, or descriptions of classes that the encoder makes its layers of. An encoder is tried on two
tiny graphs, together and alone: that gives the width of its states, and finds a layer without
``edge_dim``, shapes that do not fit, and states that depend on other graphs of the batch.

If a checkpoint names a class, loading it imports that class, which runs code. This is allowed for
classes of this package, of torch, of PyTorch Geometric and of the working folder; for any other
only within ``trust_classes``.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gnnplace.errors import InputError
from gnnplace.imports import SUFFIX, find_callable, importable, said
from gnnplace.policy.gnn.encoder import NUM_BUCKETS, NUM_POOLED, EncoderInputs

KNOWN = ("gnnplace.policy.gnn.", "torch.nn.", "torch_geometric.nn.")
CLOSE = 1e-3  # states of a graph alone and in a batch
_trusting = ContextVar("trusting", default=False)


@contextmanager
def trust_classes(everything: bool = True) -> Iterator[None]:
    """Import any class that a description names, within it."""
    token = _trusting.set(everything)
    try:
        yield
    finally:
        _trusting.reset(token)


def describe_class(encoder: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return ``class_path`` and ``init_args`` of a class, or of a class with some of its arguments.

    Raises:
        InputError: it is something else, or an argument cannot be written to a file.
    """
    arguments: Mapping[str, Any] = {}
    encoder_class: Any = encoder
    if isinstance(encoder, functools.partial):
        named = (encoder.func, *encoder.args)  # a parser has its own function first
        encoder_class = next(
            (one for one in named if inspect.isclass(one)), encoder_class
        )
        arguments = encoder.keywords
    if not inspect.isclass(encoder_class):
        raise InputError(
            f"encoder {encoder_class!r}: give a class, or functools.partial of a class, so that "
            "the checkpoint can name it"
        )
    path = f"{encoder_class.__module__}.{encoder_class.__qualname__}"
    if "<locals>" in path or path.startswith("__main__."):
        raise InputError(
            f"encoder {path}: a checkpoint cannot name it; write the class to a file of its own"
        )
    return {
        "class_path": path,
        "init_args": {k: _plain(k, v) for k, v in arguments.items()},
    }


def _plain(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, functools.partial) or inspect.isclass(value):
        return describe_class(cast("Any", value))
    raise InputError(
        f"encoder: {name} is a {type(value).__name__}; give plain values or classes"
    )


def build_encoder(description: dict[str, Any], inputs: int) -> tuple[nn.Module, int]:
    """Build the encoder of a description; return it and the width of its states.

    Args:
        description: what `describe_class` gives.
        inputs: number of features of an op.

    Raises:
        InputError: a class is missing, is not trusted, or cannot be made or used.
    """
    from gnnplace.policy.gnn.pyg import without_generated_files

    label = f"encoder {description.get('class_path')}"
    factory = _factory(description, "encoder")
    try:
        with without_generated_files():
            encoder = factory(inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{label}: cannot be made: {said(error)}") from None
    return encoder, _try_encoder(encoder, inputs, label)


def _factory(description: Any, where: str) -> Callable[..., nn.Module]:
    """Return a class with its arguments, as of a description at a key ``where``."""
    if isinstance(description, dict):
        keys = set(description)
    else:
        keys = set()
    if not keys <= {"class_path", "init_args"} or not isinstance(
        description.get("class_path"), str
    ):
        raise InputError(
            f"{where}: must have class_path and init_args, as a recipe writes them"
        )
    path = description["class_path"]
    check_trusted(path, f"{where} {path}")
    module, _, name = path.rpartition(".")
    encoder_class: Any = find_callable(module, name, f"{where} {path}")
    if not (inspect.isclass(encoder_class) and issubclass(encoder_class, nn.Module)):
        raise InputError(f"{where} {path}: it is no subclass of torch.nn.Module")
    arguments = {
        key: _argument(value, f"{where}.init_args.{key}")
        for key, value in (description.get("init_args") or {}).items()
    }
    return functools.partial(encoder_class, **arguments)


def _argument(value: object, where: str) -> object:
    if isinstance(value, dict) and "class_path" in value:
        return _factory(value, where)
    return value


def check_trusted(path: str, what: str) -> None:
    """Refuse to import what a stranger's file may name.

    Args:
        path: a dotted name, or a file's path.
        what: what errors begin with.

    Raises:
        InputError: it is of another package, and nobody said that it is trusted.
    """
    if _trusting.get() or path.startswith(KNOWN):
        return
    with importable(path):
        places = _places(path)
    working_folder = Path.cwd().resolve()
    if not places or any(
        one.exists()
        and working_folder in one.parents
        and "site-packages" not in one.parts
        for one in places
    ):
        return  # what is nowhere is told by who imports it
    raise InputError(
        f"{what}: the checkpoint asks for code outside of this folder; start where its file is, "
        "or say --trust 1 if you know who wrote it"
    )


def _places(path: str) -> list[Path]:
    """Return where the code of a dotted name or a file lies; nothing is imported."""
    if path.endswith(SUFFIX):
        return [Path(path).resolve()]
    spec = importlib.util.find_spec(path.partition(".")[0])
    if spec is None:
        return []
    return [
        Path(p).resolve() for p in spec.submodule_search_locations or [str(spec.origin)]
    ]


def _try_encoder(encoder: nn.Module, inputs: int, what: str) -> int:
    """Return the width of an encoder's states.

    Raises:
        InputError: it fails on a tiny graph, gives no state an op, or mixes graphs.
    """
    from gnnplace.policy.gnn.pyg import make_graph_batch

    graphs = [_tiny(inputs, 5, 0), _tiny(inputs, 3, 1)]
    trial = copy.deepcopy(encoder).eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            together = trial(make_graph_batch(graphs))
            alone = [trial(make_graph_batch([one])) for one in graphs]
    except Exception as error:
        hint = (
            "; layers that take edge_attr need edge_dim: 1"
            if isinstance(error, AssertionError | TypeError)
            else ""
        )
        raise InputError(
            f"{what}: fails on a graph of 5 ops: {said(error)}{hint}"
        ) from None
    is_matrix = isinstance(together, Tensor) and together.dim() == 2
    if not is_matrix or len(together) != 8:
        answer = (
            tuple(together.shape)
            if isinstance(together, Tensor)
            else type(together).__name__
        )
        raise InputError(
            f"{what}: gives {answer} for 8 ops; it must give a state of each, [8, width]"
        )
    if not torch.allclose(together, torch.cat(alone), rtol=CLOSE, atol=CLOSE):
        raise InputError(f"{what}: states of a graph depend on the others of its batch")
    return int(together.shape[1])


def _tiny(inputs: int, ops: int, seed: int) -> EncoderInputs:
    """Return a chain with random features."""
    generator = torch.Generator().manual_seed(seed)
    chain = torch.arange(ops)
    return EncoderInputs(
        x=torch.randn(ops, inputs, generator=generator),
        edge_index=torch.stack([chain[:-1], chain[1:]]),
        edge_attr=torch.rand(ops - 1, 1, generator=generator),
        bucket=(chain * NUM_BUCKETS) // ops,
        clusters=(chain // 2).repeat(NUM_POOLED, 1),
    )
