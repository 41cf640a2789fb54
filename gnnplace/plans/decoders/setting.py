"""`PricingSetting`: what a plan is priced on: decoder, GPUs and network, framework, precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gnnplace.costs.frameworks.constants import (
    DEFAULT_FRAMEWORK,
    ConstantSet,
    environment,
    framework,
    mode,
)
from gnnplace.costs.kernels import Kernels, kernels_of
from gnnplace.costs.memory import MOMENTS, PARAMETER
from gnnplace.costs.network import ServerNetwork, network_of
from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.spec import PlanSpec
from gnnplace.problem import Cluster
from gnnplace.problem.cluster.gpus import figures
from gnnplace.problem.cluster.presets import MEMORY

Traits = dict[str, Any]
TRAITS: dict[str, Traits] = {
    "pytorch": {"cut": "least", "precision": "bf16-mixed", "gradients": "same", "zeros": "0123",
                "schedules": ("1f1b", "gpipe", "interleaved"), "hides": "reduce+gather",
                "attention": "triton", "compiles": True, "graphs": ("off", "layers", "iteration")},
    "nanotron": {"cut": "cost", "precision": "bf16-master", "gradients": "fp32", "zeros": "01",
                 "schedules": ("1f1b", "gpipe"), "hides": "none", "attention": "flash",
                 "compiles": False, "graphs": ("off",)},
    "megatron-lm": {"cut": "equal", "precision": "bf16-master", "gradients": "fp32",
                    "zeros": "01", "schedules": ("1f1b", "interleaved"), "hides": "none",
                    "attention": "flash", "compiles": False,
                    "graphs": ("off", "layers", "iteration")},
    "megatron-deepspeed": {"cut": "even", "precision": "bf16-master", "gradients": "same",
                           "zeros": "01", "schedules": ("1f1b",), "hides": "none",
                           "attention": "products", "compiles": False, "graphs": ("off",)},
    "internevo": {"cut": "equal", "precision": "bf16-master", "gradients": "same", "zeros": "01",
                  "schedules": ("1f1b", "interleaved"), "hides": "reduce",
                  "attention": "flash", "compiles": False, "graphs": ("off",)},
    "torchtitan": {"cut": "ends", "precision": "bf16-mixed", "gradients": "fp32", "zeros": "03",
                   "schedules": ("1f1b", "gpipe", "interleaved"), "hides": "reduce+gather",
                   "attention": "flash", "compiles": True, "graphs": ("iteration", "off")},
}  # fmt: skip
"""What frameworks do where a plan does not say: how they cut stages and sum gradients, which ZeRO
and schedules they have, which exchanges of replicas they hide, whether they compile layers, which
launches they capture (the first where nothing is said and it can be), which attention the published
runs of them had (their sources, November 2026): PyTorch's FSDP that of triton of 2023; for a newer
one name the environment `flash-attention`."""
KERNELS = ("flash", "products")  # of attention, which environments name
LARGE = (8192, 8192, 8192)  # rows, columns and summed length that tell which kind is slowest
HALVES = ("bf16-mixed", "bf16-master", "bf16-true", "16-mixed", "16-master", "16-true")


@dataclass(frozen=True, eq=False)
class PricingSetting:
    """What a plan is priced on.

    Attributes:
        decoder: the sizes.
        cluster: the devices.
        name: of the framework.
        constants: of the framework.
        checks: of an environment that checks collectives; None of any other.
        precision: in Lightning's spec.
        optimizer: "sgd", "adam" or "adamw".
        kernels: seconds of kernels on one device, of several kinds on the slowest.
        network: seconds of exchanges.
        memory: bytes of a device that may be allocated and reserved, of several kinds the fewest.
        kinds: what a device of each kind is priced on, where there are several.
    """

    decoder: DecoderSizes
    cluster: Cluster
    name: str
    constants: ConstantSet
    checks: ConstantSet | None
    precision: str
    optimizer: str
    kernels: Kernels
    network: ServerNetwork
    memory: float
    kinds: Mapping[str, PricingSetting] = field(default_factory=dict)

    def on_ranks(self, devices: int, ranks: int) -> list[list[PricingSetting]]:
        """What the devices of each rank are priced on, each kind once; a rank's are neighbours.

        Args:
            devices: how many are used, the first of the cluster.
            ranks: of the pipeline.
        """
        each, used = devices // ranks, [device.kind for device in self.cluster.devices[:devices]]
        found = [dict.fromkeys(used[r * each : (r + 1) * each]) for r in range(ranks)]
        return [[self.kinds.get(kind, self) for kind in own] for own in found]

    @property
    def workspace(self) -> float:
        """Bytes beside tensors that a device's log has, of libraries and of the framework."""
        return self.kernels.rates["workspace"] + self.constants["workspace"]

    @property
    def traits(self) -> Traits:
        """What the framework does where a plan does not say."""
        return TRAITS[self.name]


def setting_of(
    decoder: DecoderSizes,
    cluster: Cluster,
    *,
    framework_name: str | None = None,
    environment_name: str | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    memory_limit: float | None = None,
) -> PricingSetting:
    """What plans of a decoder are priced on.

    Args:
        decoder: the sizes.
        cluster: devices in topology order.
        framework_name: whose constants count; None: PyTorch's own.
        environment_name: such as "checked-collectives"; None: none.
        precision: in Lightning's spec; None: the framework's usual one.
        optimizer: None: "adamw".
        memory_limit: bytes of a device; None: those of the cluster's devices. What a preset leaves
            free of a known GPU counts: frameworks' own needs are priced.

    Raises:
        InputError: an unknown word, or devices of a kind without constants.
    """
    if len(cluster.kinds) > 1:
        told = (framework_name, environment_name, precision, optimizer, memory_limit)
        return _of_several(decoder, cluster, told)
    name = framework_name or DEFAULT_FRAMEWORK
    own, around = framework(name), environment(environment_name) if environment_name else None
    named = around.constants if around else {}
    changed = {n: constant for n, constant in named.items() if n in own.constants}
    own = ConstantSet(own.owner, {**own.constants, **changed})
    precision, optimizer = precision or TRAITS[name]["precision"], optimizer or "adamw"
    if precision not in HALVES:
        raise InputError(
            f"precision {precision!r}: decoders are priced in half precision; use one of "
            f"{', '.join(HALVES)}"
        )
    if optimizer not in MOMENTS:
        raise InputError(f"optimizer {optimizer!r}: unknown; use one of {', '.join(MOMENTS)}")
    checks = around if "check" in named else None
    attention = next((n for n in KERNELS if n in named), TRAITS[name]["attention"])
    kernels = kernels_of(cluster.kinds[0], attention, own["clock"])
    memory = memory_limit or min(device.memory for device in cluster.devices)
    nominal = figures(kernels.kind).memory
    if memory_limit is None and memory in (MEMORY.get(kernels.kind), nominal):
        memory = nominal * own["driver_bytes"]
    return PricingSetting(
        decoder, cluster, name, own, checks, precision, optimizer, kernels,
        network_of(cluster, own), memory,
    )  # fmt: skip


def _of_several(decoder: DecoderSizes, cluster: Cluster, told: tuple[Any, ...]) -> PricingSetting:
    """What plans are priced on over devices of several kinds; told are the spec of `setting_of`.

    Raises:
        InputError: likewise.
    """
    framework_name, environment_name, precision, optimizer, memory_limit = told
    kinds: dict[str, PricingSetting] = {}
    for kind in cluster.kinds:
        devices = tuple(device for device in cluster.devices if device.kind == kind)
        kinds[kind] = setting_of(
            decoder, Cluster(devices, (), cluster.name), framework_name=framework_name,
            environment_name=environment_name, precision=precision, optimizer=optimizer,
            memory_limit=memory_limit,
        )  # fmt: skip
    slowest = max(kinds.values(), key=lambda own: own.kernels.products([LARGE]))
    return replace(
        slowest, cluster=cluster, network=network_of(cluster, slowest.constants), kinds=kinds,
        memory=min(own.memory for own in kinds.values()),
    )  # fmt: skip


def captured(setting: PricingSetting, spec: PlanSpec) -> str:
    """Whose launches are captured: as told, else as the framework does where it can be."""
    usual: str = setting.traits["graphs"][0]
    moves = spec.pp > 1 or setting.decoder.experts is not None or setting.checks is not None
    return spec.cuda_graphs or ("off" if moves else usual)


@lru_cache(maxsize=256)
def running(setting: PricingSetting, compiled: bool, graphs: str) -> PricingSetting:
    """The setting of a step whose layers are compiled, or whose launches are captured, or neither.

    Args:
        setting: of an eager step.
        compiled: whether layers and the loss run under `torch.compile`.
        graphs: as `captured` answers; what it leaves of a floor is no more than there was.
    """
    own = dict(setting.constants.constants)
    if compiled:
        own |= mode("compile=on").constants
    for name, constant in mode(f"cuda_graphs={graphs}").constants.items():
        own[name] = min(own[name], constant, key=lambda one: one.value)
    return replace(setting, constants=ConstantSet(setting.constants.owner, own))


def state_per_parameter(setting: PricingSetting, gradients: str) -> tuple[float, float, float]:
    """Bytes a parameter: of itself, of its gradient, of what the optimizer keeps.

    Args:
        setting: precision and optimizer count.
        gradients: "fp32" or "same".
    """
    own, gradient, moment = PARAMETER[setting.precision]
    kept = moment * (MOMENTS[setting.optimizer] + setting.precision.endswith("-master"))
    return float(own), 4.0 if gradients == "fp32" else float(gradient), float(kept)
