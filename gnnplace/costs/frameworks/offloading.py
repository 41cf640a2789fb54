"""`Offloading`: what of a step leaves the GPU for the host's memory, and what that takes.

`optimizer` (ZeRO-Offload, Ren et al., 2021, arXiv 2101.06840): the optimizer's state lies in the
host's memory. Gradients of a device's part go there behind the backward pass, the CPUs of the
server update the parts of all of its GPUs, and parameters come back, bare. `optimizer+parameters`
(ZeRO-Infinity, Rajbhandari et al., 2021, arXiv 2104.07857): the half parameters lie there too, and
come back before every pass of a micro-batch, behind the work before. `activations:F`: the part F of
what a micro-batch keeps leaves behind its forward pass and comes back behind its backward pass.

What is hidden behind a pass of w seconds adds what it takes beyond w, since copies need no
multiprocessor. Both ways of a link are used at once. GPUs behind one switch share its way to the
host.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnplace.costs.frameworks.constants import load_hardware_constants

NOTHING = "none"
ACTIVATIONS = "activations"
PATTERN = r"none|optimizer(\+parameters)?|activations:(1|0\.\d{1,3})"


@dataclass(frozen=True)
class Offloading:
    """The state and activations that leave the GPU.

    Attributes:
        optimizer: Whether the optimizer's state does.
        parameters: Whether half parameters do.
        activations: Part of what micro-batches keep for their backward passes.
    """

    optimizer: bool = False
    parameters: bool = False
    activations: float = 0.0


def parse_offloading(word: str) -> Offloading:
    """Return the offloading that a value of the word `offload` names."""
    name, _, part = word.partition(":")
    if name == ACTIVATIONS:
        return Offloading(activations=float(part))
    return Offloading(optimizer="optimizer" in name, parameters="parameters" in name)


@dataclass(frozen=True)
class Host:
    """The host's memory as one GPU of a full server has it.

    Attributes:
        link: Bytes a second between GPU and host, each way.
        memory: Bytes a second of the host's memory that the CPUs have for its part.
        adam: Bytes that a CPU's AdamW reads and writes for each parameter.
    """

    link: float
    memory: float
    adam: float


def get_host(kind: str, each: int) -> Host:
    """Return the host of a kind of GPU.

    Args:
        kind: The kind of the GPU.
        each: GPUs of a server.
    """
    constants = load_hardware_constants()
    sharers = min(constants.of("host_link_sharers", kind), float(each))
    return Host(
        link=constants.of("host_link", kind) * constants["host_link_share"] / sharers,
        memory=constants.of("host_memory", kind)
        * constants["host_memory_share"]
        / each,
        adam=constants["host_adam"],
    )


def compute_uncovered_seconds(seconds: float, work: float) -> float:
    """Return the seconds of a copy that the work beside it does not cover."""
    return max(0.0, seconds - work)
