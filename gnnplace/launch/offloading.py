"""Offloading to the host's memory in launch files, as the word `offload` of a plan.

FSDP's offloading moves sharded parameters, gradients and the optimizer's state. DeepSpeed moves the
optimizer's state with its gradients (ZeRO 1 to 3), and parameters as well (ZeRO 3). Megatron-LM
moves the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnnplace.launch.launch_plan import NONE

EVERYTHING = "optimizer+parameters"
OPTIMIZER = "optimizer"
CPU = "cpu"


def fsdp_offload(zero: int) -> str | None:
    """Return the word for FSDP's offloading, or None if parameters stay whole after a pass."""
    if zero == 3:
        return EVERYTHING
    return None


def find_deepspeed_offload(
    optimizer: object, parameters: object, zero: int
) -> str | None:
    """Return the word for the devices that DeepSpeed's sections name.

    Args:
        optimizer: The value of `offload_optimizer`: its section, a device or a switch.
        parameters: The value of `offload_param`.
        zero: The ZeRO stage, without which DeepSpeed moves nothing.

    Returns:
        The word; None where there is none, as for a disk or a share of the state.
    """
    optimizer_device = _device(optimizer)
    parameter_device = _device(parameters)
    devices = {optimizer_device, parameter_device} - {NONE}
    if not devices:
        return NONE
    if devices != {CPU} or optimizer_device == NONE or zero == 0:
        return None
    if parameter_device == NONE:
        return OPTIMIZER
    if zero == 3:
        return EVERYTHING
    return None


def _device(value: object) -> str:
    """Return the device of a section, and what is no whole device under a name of its own."""
    if isinstance(value, Mapping):
        if value.get("ratio", 1.0) not in (1, 1.0):
            return "part"
        value = value.get("device", CPU if value else None)
    if value in (None, False, NONE):
        return NONE
    if value is True:
        return CPU
    return str(value).lower()
