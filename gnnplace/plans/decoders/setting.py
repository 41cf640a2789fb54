"""`PricingSetting`: a decoder's sizes, the devices, and the framework that plans are priced by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gnnplace.costs import (
    DEFAULT_FRAMEWORK,
    GPUS,
    PRODUCTS,
    TRAITS,
    ConstantSet,
    Framework,
    find_kernels,
    get_network,
    get_optimizer_kind,
    load_environment_constants,
    load_framework_constants,
    load_hardware_constants,
)
from gnnplace.errors import InputError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem import MEMORY, Cluster, find_kind, get_figures, with_slack

ROOFLINE_SPREAD = 1.5
"""Factor of the interval's ends where a roofline prices kernels: the error of `costs.prediction` of
GPUs without tables is about that; assumed of a whole step."""
KERNELS = ("flash", "products", "cudnn")  # kernels of attention that environments name
# Rows, columns and inner length of a product that tells which kind is slowest.
LARGE = (8192, 8192, 8192)
HALVES = ("bf16-mixed", "bf16-master", "bf16-true", "16-mixed", "16-master", "16-true")


@dataclass(frozen=True, eq=False)
class PricingSetting:
    """The model, the devices and the framework that plans are priced for.

    Attributes:
        decoder: The sizes of the model.
        cluster: The devices.
        framework: The framework with its kernels, network and constants.
        recomputed_modules: Modules that recomputation by modules computes again, as
            `plans.spec.RECOMPUTED_MODULES` names them; empty: attention alone.
    """

    decoder: DecoderSizes
    cluster: Cluster
    framework: Framework
    recomputed_modules: tuple[str, ...] = ()

    @cached_property
    def fabric(self) -> MeshFabric:
        """Return the cluster as meshes are laid on it, with the prices of its exchanges."""
        return MeshFabric(self.cluster)


@dataclass(frozen=True)
class FrameworkOptions:
    """Options of a framework. The fields are arguments of `make_pricing_setting`, and this one.

    Attributes:
        factored: Sums of rows and columns for each parameter, of matrices of layers and beside.
    """

    name: str = DEFAULT_FRAMEWORK
    environment: str | None = None
    precision: str | None = None
    optimizer: str = "adamw"
    memory_limit: float | None = None
    factored: tuple[float, float] = (0.0, 0.0)


def make_pricing_setting(
    decoder: DecoderSizes,
    cluster: Cluster,
    *,
    framework_name: str | None = None,
    environment_name: str | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    memory_limit: float | None = None,
) -> PricingSetting:
    """Return the sizes, devices and framework that plans of a decoder are priced for.

    Args:
        decoder: The sizes.
        cluster: Devices in topology order.
        framework_name: The framework whose constants count; None: PyTorch's own.
        environment_name: The environment, such as "checked-collectives"; None for none.
        precision: The precision in Lightning's words; None: the framework's usual one.
        optimizer: The optimizer; None: "adamw".
        memory_limit: Bytes of a device; None: those of the cluster's devices. What a preset leaves
            free of a known GPU counts: frameworks' own needs are priced.

    Raises:
        InputError: If a word is unknown, or there are no constants for a kind of device.
    """
    framework = adapt_framework(
        cluster,
        FrameworkOptions(
            name=framework_name or DEFAULT_FRAMEWORK,
            environment=environment_name,
            precision=precision,
            optimizer=optimizer or "adamw",
            memory_limit=memory_limit,
            factored=_count_factored_means(decoder),
        ),
    )
    return PricingSetting(decoder, cluster, framework)


def adapt_framework(cluster: Cluster, options: FrameworkOptions) -> Framework:
    """Return a framework with the kernels and the network of a cluster.

    Args:
        cluster: Devices in topology order.
        options: What is asked of the framework.

    Raises:
        InputError: As `make_pricing_setting` does.
    """
    kinds = {kind: _get_framework(cluster, kind, options) for kind in cluster.kinds}
    slowest = max(kinds.values(), key=lambda one: one.kernels.products([LARGE]))
    if len(kinds) > 1:
        slowest = replace(
            slowest,
            network=get_network(cluster, slowest.constants),
            memory=min(one.memory for one in kinds.values()),
            kinds=kinds,
        )
    return slowest


def _count_factored_means(decoder: DecoderSizes) -> tuple[float, float]:
    """Return the sums of rows and columns for each parameter, of matrices of layers and beside."""
    num_expert_layers = decoder.num_expert_layers
    sums = 0.0
    elements = 0.0
    if decoder.adapters is not None:
        rank = decoder.adapters.rank
        for linear in decoder.list_adapted_linears():
            for rows, columns in linear.adapter_shapes(rank):
                sums += rows + columns
                elements += rows * columns
        return sums / elements, 1.0
    for num_layers, has_experts in (
        (decoder.layers - num_expert_layers, False),
        (num_expert_layers, True),
    ):
        for linear in decoder.linears(has_experts=has_experts) if num_layers else ():
            sums += num_layers * linear.count * (linear.inputs + linear.outputs)
            elements += num_layers * linear.count * linear.inputs * linear.outputs
    # Tables have rows and columns, vectors a number for each of theirs.
    tables = 1 if decoder.tied else 2
    rows = tables * decoder.vocabulary + decoder.learned
    width = tables + (decoder.learned > 0)
    vectors = decoder.parameters - elements - rows * decoder.hidden
    sums_outside = rows + width * decoder.hidden + vectors
    return sums / elements, sums_outside / (decoder.parameters - elements)


def _get_framework(cluster: Cluster, kind: str, options: FrameworkOptions) -> Framework:
    """Return a framework on the devices of one kind.

    Args:
        cluster: All devices.
        kind: One of the kinds that count. Of several kinds each is taken alone, without its links.
        options: What is asked of the framework.

    Raises:
        InputError: As `make_pricing_setting` does.
    """
    if len(cluster.kinds) > 1:
        devices = tuple(device for device in cluster.devices if device.kind == kind)
        cluster = Cluster(devices, (), cluster.name)
    # Constants that the environment names replace the framework's.
    name = options.name
    memory_limit = options.memory_limit
    optimizer = options.optimizer
    constants = load_framework_constants(name)
    if options.environment:
        environment_set = load_environment_constants(options.environment)
    else:
        environment_set = None
    if environment_set:
        named = environment_set.constants
    else:
        named = {}
    replaceable = (
        constants.constants.keys() | load_hardware_constants().constants.keys()
    )
    changed = {n: constant for n, constant in named.items() if n in replaceable}
    constants = ConstantSet(constants.owner, {**constants.constants, **changed})
    traits = TRAITS[name]
    precision = options.precision or traits.precision
    if precision not in HALVES:
        raise InputError(
            f"precision {precision!r}: decoders are priced in half precision; use one of "
            f"{', '.join(HALVES)}"
        )
    get_optimizer_kind(optimizer)
    gpu = find_kernels(cluster.kinds[0], PRODUCTS).kind
    # The environment may name the kernel of attention; else the framework chooses it.
    kernel_names = [kernel for kernel in KERNELS if kernel in named]
    if len(kernel_names) > 1:
        raise InputError(
            f"--environment {options.environment!r}: names two kernels of attention; leave one out"
        )
    if kernel_names:
        attention = kernel_names[0]
    else:
        attention = traits.find_attention(gpu)
    kernels = find_kernels(cluster.kinds[0], attention, constants.of("clock", gpu))
    if kernels.is_roofline:
        constants = _widen_constants(constants)
    # A device with the memory of a known GPU has what its driver leaves of it.
    memory = memory_limit or min(device.memory for device in cluster.devices)
    nominal = get_figures(kernels.kind).memory
    if memory_limit is None and memory in (MEMORY.get(kernels.kind), nominal):
        memory = nominal * constants["driver_bytes"]
    return Framework(
        name=name,
        constants=constants,
        checks=environment_set if "check" in named else None,
        precision=precision,
        optimizer=optimizer,
        kernels=kernels,
        network=get_network(cluster, constants),
        memory=memory,
        factored=options.factored,
    )


def _widen_constants(constants: ConstantSet) -> ConstantSet:
    """Return a framework's constants with the interval of GPUs whose kernels were not measured."""
    low = constants.constants["low"]
    high = constants.constants["high"]
    widened = {
        "low": replace(low, value=low.value / ROOFLINE_SPREAD),
        "high": replace(high, value=high.value * ROOFLINE_SPREAD),
    }
    return ConstantSet(constants.owner, {**constants.constants, **widened})


def roofline_line(cluster: Cluster) -> str:
    """Format what prices a GPU without constants of a step."""
    kinds = [kind for kind in cluster.kinds if find_kind(kind) not in GPUS]
    return (
        f"{', '.join(kinds)}: no step was measured on it: priced by roofline, from its peaks and "
        f"its bandwidth, with an interval {ROOFLINE_SPREAD:g} times as wide each way"
    )


def find_memory_limit(cluster: Cluster) -> float | None:
    """Return the bytes of a device that are asked for, or None for what the framework leaves.

    Headroom "auto" stands for what libraries take, which the framework's own terms price.
    """
    if not any(device.reserve for device in cluster.devices):
        return None
    automatic = with_slack(cluster.each_device(reserve=0.0))
    reserves = [device.reserve for device in cluster.devices]
    if reserves == [device.reserve for device in automatic.devices]:
        return None
    return float(cluster.memory.min())
