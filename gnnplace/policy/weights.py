"""The weights of the learned placer as arrays, which are read and used without torch.

Decoder and refiner score candidate devices by weighted sums of features (``decode.kernels``,
``refine.refining``). The weights begin as a prior (earliest finish, or the plan's device where
chunks are wanted, and no more load than the ideal share), so that an untrained policy already is a
list scheduler. Training moves them as parameters of torch (``network``).

Times are in units of the mean op time (``log1p``) or of all work, so that the policy does not
depend on how fast the machine is. A change of any feature is a new version.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError

from gnnplace.arrays import FloatArray, SingleArray
from gnnplace.errors import FormatError, MismatchError
from gnnplace.files import Schema, parse, read_json
from gnnplace.policy.card import CARD, TrainingCard
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.naming import (
    NamedRow,
    compute_version,
    list_feature_names,
    name_columns,
)
from gnnplace.policy.refine.refining import PRIOR as REFINER_PRIOR
from gnnplace.policy.refine.refining import REFINING

if TYPE_CHECKING:  # a checkpoint of Lightning alone needs torch
    from torch import Tensor

PLACER_KEY = "placer"
"""The key of ``config.json`` that names the placer which a network is for."""
NETWORK_KEY = "gnnplace"
"""The entry of a checkpoint of Lightning that says which of its parameters are a placer's network.

It has ``config``, what ``config.json`` would have, ``prefix``, what the names of the network's
parameters begin with in ``state_dict``, and ``card``, what ``training.json`` would have.
"""
# A key of every config.json of ``gnn``, even if it names no placer.
GNN_ONLY = "decoder_hidden"
WEIGHTS_FILE = "model.safetensors"
POLICY_CHECKPOINT = Path(__file__).parent / "checkpoint"
DECODER_PRIOR = {
    "earliest finish above the best, out of chunks": -4.0,
    "load after, above the ideal share": -3.0,
    "the chunk plan's device": 8.0,
}


def global_features(graph: WalkGraph) -> SingleArray:
    """Return features of the whole problem, named by ``GLOBAL``. [len(GLOBAL)]"""
    out = np.empty(len(GLOBAL), np.float32)
    _write_global(graph, out)
    return out


@name_columns("out")
def _write_global(graph: WalkGraph, out: NamedRow) -> None:
    problem = graph.problem
    walk = graph.forward
    memory = float(walk.memory.sum())
    critical = float((graph.up + graph.down).max())
    linked = problem.cluster.linked
    bandwidth = problem.cluster.bandwidth[linked]
    if linked.any():
        latency = float(problem.cluster.latency[linked].mean())
    else:
        latency = 0.0
    out["log devices"] = np.log(problem.num_devices)
    out["log visited ops"] = np.log(len(graph.ops)) / 4.0
    out["log micro-batches"] = np.log(problem.microbatches)
    all_work = float(graph.cost.sum())
    ratio = graph.edge_cost.sum() / max(all_work, 1e-300)
    out["communication to computation"] = np.log1p(ratio)
    out["critical path, of the work on all devices"] = min(
        8.0, critical * problem.num_devices * problem.microbatches / walk.work
    )
    out["spread of device speeds"] = float(
        spread_over(walk.device_time[None], np.ones(problem.num_devices))[0]
    )
    out["memory needed, of all memory"] = min(
        2.0, (walk.unit_state.sum() + walk.unit_bytes.sum()) / memory
    )
    out["state needed, of all memory"] = min(2.0, walk.unit_state.sum() / memory)
    out["channels a device"] = problem.cluster.num_channels / problem.num_devices**2
    out["log latency"] = np.log1p(latency / walk.scale)
    out["spread of bandwidths"] = (
        float(np.log(bandwidth).std()) if len(bandwidth) else 0.0
    )


def spread_over(times: FloatArray, devices: FloatArray) -> FloatArray:
    """Return the standard deviation of the logarithm over devices that can run an op. [n]

    Args:
        times: seconds of each op on each column of devices, inf where they cannot. [n, K]
        devices: number of devices of each column. [K]
    """
    good = np.isfinite(times) & (times > 0)
    count = np.maximum(good @ devices, 1.0)
    positive = np.where(good, times, 1.0)
    logs = np.where(good, np.log(positive), 0.0)
    mean = logs @ devices / count
    square = np.where(good, (logs - mean[:, None]) ** 2, 0.0)
    variance = square @ devices / count
    return np.asarray(np.sqrt(variance))


GLOBAL = list_feature_names(_write_global)
FEATURE_VERSION = compute_version(DYNAMIC, REFINING, GLOBAL)


class PolicyConfig(Schema):
    """The keys of a policy's ``config.json``: the arguments of ``PlacementPolicy``."""

    feature_version: str


@dataclass(frozen=True, eq=False)
class PolicyWeights:
    """The weights of a policy.

    Attributes:
        decoder: Weight of each feature of the decoder. [len(DYNAMIC)]
        refiner: Weight of each feature of the refiner. [len(REFINING)]
    """

    decoder: SingleArray
    refiner: SingleArray


def fill_weights(names: tuple[str, ...], prior: Mapping[str, float]) -> SingleArray:
    """Return a weight for each feature, zero if the prior has none. [len(names)]"""
    values = [prior.get(name, 0.0) for name in names]
    return np.array(values, np.float32)


def prior_weights() -> PolicyWeights:
    """Return the weights that training begins with."""
    return PolicyWeights(
        decoder=fill_weights(DYNAMIC, DECODER_PRIOR),
        refiner=fill_weights(REFINING, REFINER_PRIOR),
    )


def check_feature_version(version: str) -> None:
    """Check that weights were trained on the features that this package computes.

    Raises:
        MismatchError: They were not.
    """
    if version != FEATURE_VERSION:
        raise MismatchError(
            f"policy checkpoint: feature_version {version}, but this gnnplace has "
            f"{FEATURE_VERSION}; train it anew or install the version that made it"
        )


def read_weights(path: str | Path) -> PolicyWeights:
    """Return the weights of a policy that was saved. Only a ``.ckpt`` file needs torch.

    Args:
        path: The folder that training exported, or a checkpoint of Lightning.

    Raises:
        FormatError: A file is missing or malformed.
        MismatchError: The network is another placer's, or of other features or sizes.
    """
    path = Path(path)
    config, parameters = read_saved_config(path, "learned")
    check_feature_version(
        parse(PolicyConfig, config, f"{path}/config.json").feature_version
    )
    if parameters:
        arrays = {}
        for name, value in parameters.items():
            arrays[name] = value.detach().numpy()
    else:
        from safetensors.numpy import load_file

        try:
            arrays = load_file(path / WEIGHTS_FILE)
        except (OSError, SafetensorError) as error:
            raise unreadable(path / WEIGHTS_FILE, error) from None
    if set(arrays) != {"decoder", "refiner"}:
        raise misfit(path)
    decoder = arrays["decoder"]
    refiner = arrays["refiner"]
    expected_shapes = ((len(DYNAMIC),), (len(REFINING),))
    if (decoder.shape, refiner.shape) != expected_shapes:
        raise misfit(path)
    return PolicyWeights(decoder.astype(np.float32), refiner.astype(np.float32))


def unreadable(path: Path, error: Exception) -> FormatError:
    """Return the error for a file of parameters that cannot be read."""
    return FormatError(f"{path}: cannot be read: {str(error).splitlines()[0]}")


def misfit(path: Path) -> MismatchError:
    """Return the error for parameters of other sizes than their config says."""
    return MismatchError(
        f"{path}: its parameters do not fit the sizes in its config; save both together"
    )


def read_saved_config(
    path: Path, placer: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config of a saved network, and the parameters that are in the same file.

    There are no parameters where ``path`` is a folder: they have a file of their own.

    Args:
        path: A folder or a ``.ckpt`` file, as ``read_saved`` takes it.
        placer: The placer that the network is to be for.

    Raises:
        FormatError: The file is missing or malformed.
        MismatchError: The network is another placer's.
    """
    parameters: dict[str, Tensor] = {}
    if path.is_file() or path.suffix == ".ckpt":
        config, parameters = read_lightning_checkpoint(path)
    else:
        config = read_json(path / "config.json")
    if not isinstance(config, dict):
        raise FormatError(
            f"{path}/config.json: must be an object, as training exports it"
        )
    # Folders that were saved before they named their placer are told apart by a key of theirs.
    saved_for = config.get(PLACER_KEY, "gnn" if GNN_ONLY in config else "learned")
    if saved_for != placer:
        raise MismatchError(
            f"{path}: this is a network of --placer {saved_for}; add --placer {saved_for}"
        )
    config.pop(PLACER_KEY, None)
    return config, parameters


def read_lightning_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config and parameters of the network in a checkpoint of Lightning.

    Only tensors and plain values are loaded: a file that would run code is refused.

    Raises:
        FormatError: It is no such file, or no training of a placer wrote it.
    """
    checkpoint = _load_checkpoint(path)
    entry = checkpoint[NETWORK_KEY]
    prefix = str(entry.get("prefix"))
    parameters = {
        name.removeprefix(prefix): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    return entry["config"], parameters


def read_card(checkpoint: str | Path) -> TrainingCard | None:
    """Read the card of a checkpoint, a folder or a ``.ckpt`` file; None if there is none.

    Raises:
        FormatError: It is malformed; names the key path.
    """
    if Path(checkpoint).is_file():
        return read_checkpoint_card(Path(checkpoint))
    path = Path(checkpoint) / CARD
    if path.is_file():
        return parse(TrainingCard, read_json(path), str(path))
    return None


def read_checkpoint_card(path: Path) -> TrainingCard | None:
    """Return the training card in a checkpoint of Lightning; None if it was written without one.

    Raises:
        FormatError: As `read_lightning_checkpoint`; or the card is malformed.
    """
    card = _load_checkpoint(path)[NETWORK_KEY].get("card")
    if card is None:
        return None
    return parse(TrainingCard, card, f"{path}: card")


def _load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the entries of a checkpoint that training of a placer wrote.

    Raises:
        FormatError: It is no such file.
    """
    import torch

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except pickle.UnpicklingError:
        raise FormatError(
            f"{path}: holds Python objects, whose loading could run code; give the folder that "
            "the training exported"
        ) from None
    except (RuntimeError, ValueError, KeyError, EOFError, OSError):
        raise FormatError(
            f"{path}: not a checkpoint; give a .ckpt file of `gnnplace train fit`, or a folder "
            "that it exported"
        ) from None
    if isinstance(checkpoint, dict):
        entry = checkpoint.get(NETWORK_KEY)
    else:
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
        raise FormatError(
            f"{path}: names no network of a placer; give a .ckpt file that `gnnplace train fit` of "
            "this version wrote, or a folder that it exported"
        )
    return checkpoint
