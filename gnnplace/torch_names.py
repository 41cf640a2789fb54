"""Private names of torch, and for which of its versions they hold.

A name of the list below holds for all of `WORKING_VERSIONS["torch"]`, 2.12 to 2.14, as do the
constants, unless something else is said. What has another spelling, or works otherwise, in some of
these versions stands below the list as a constant or a function that says which:

| here | 2.12 | 2.13 | 2.14 |
|---|---|---|---|
| `REGION` | `_checkpoint_without_reentrant_generator` | as 2.12 | `..._impl`, of other arguments |
| `APPLY_OWNER` | `_SingleLevelFunction` | as 2.12 | `Function`, whose `apply` is C's own |
| `mixes_devices` | a `RuntimeError` | `FakeTensorDeviceMismatchError` | as 2.13 |
| `gather_flat` | `all_gather_into_tensor` | `all_gather_single` | as 2.13 |
| `scatter_flat` | `reduce_scatter_tensor` | `reduce_scatter_single` | as 2.13 |
| `refuses_inference` | also a `KeyError` of a storage | "Inference tensors ..." | as 2.13 |
| `refuses_generator` | an argument of no type that fx has | an input of the graph | as 2.13 |

`make torch-names` looks every name up in the sources of other versions.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import _C as c_library
from torch import distributed, nn
from torch._subclasses import fake_tensor as fake_tensors
from torch.autograd import Function, Variable
from torch.autograd.function import BackwardCFunction
from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction
from torch.utils import checkpoint

from gnnplace.foreign import check_version, foreign_names, patch_private, read_private

if TYPE_CHECKING:  # the list of names; ``foreign_names`` reads it too
    from torch import _check_tensor_all_with as check_tensor_all_with
    from torch import _utils as torch_utils
    from torch._C import DisableTorchFunction as DisableTorchFunction
    from torch._C import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
    from torch._C import DispatchKey as DispatchKey
    from torch._C import _disabled_torch_function_impl as disabled_torch_function_impl
    from torch._C import _DisableTorchDispatch as DisableTorchDispatch
    from torch._C import (
        _dispatch_has_kernel_for_dispatch_key as dispatch_has_kernel_for_dispatch_key,
    )
    from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
    from torch._C import _will_engine_execute_node as will_engine_execute_node
    from torch._C._autograd import (
        _top_saved_tensors_default_hooks as top_saved_tensors_default_hooks,
    )
    from torch._C._functorch import (
        is_functorch_wrapped_tensor as is_functorch_wrapped_tensor,
    )
    from torch._C._nn import _parse_to as parse_to
    from torch._decomp import decompositions as decompositions
    from torch._dynamo import utils as dynamo_utils
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd import descriptors as descriptors
    from torch._functorch.aot_autograd import (
        aot_export_joint_with_descriptors as aot_export_joint_with_descriptors,
    )
    from torch._guards import TracingContext as TracingContext
    from torch._guards import detect_fake_mode as detect_fake_mode
    from torch._guards import tracing as tracing
    from torch._ops import OpOverload as OpOverload
    from torch._subclasses import fake_tensor as fake_tensor
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import (
        in_kernel_invocation_manager as in_kernel_invocation_manager,
    )
    from torch._subclasses.fake_tensor import (
        unset_fake_temporarily as unset_fake_temporarily,
    )
    from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
    from torch.distributed import ProcessGroup as ProcessGroup
    from torch.distributed.tensor.placement_types import _StridedShard as StridedShard
    from torch.nn.modules._functions import BackwardHookFunction as BackwardHookFunction
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase
    from torch.nn.modules.batchnorm import _NormBase as NormBase
    from torch.nn.modules.dropout import _DropoutNd as DropoutBase
    from torch.overrides import (
        _get_current_function_mode_stack as get_current_function_mode_stack,
    )
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import (
        _disable_current_modes as disable_current_modes,
    )
    from torch.utils._python_dispatch import (
        _get_current_dispatch_mode_stack as get_current_dispatch_mode_stack,
    )
    from torch.utils._pytree import tree_map_only as tree_map_only

__getattr__, __dir__ = foreign_names(__name__, "torch")

check_version("torch", torch.__version__)

REGION = "_checkpoint_without_reentrant_generator"
if hasattr(checkpoint, f"{REGION}_impl"):  # 2.14
    REGION += "_impl"
"""What `torch.utils.checkpoint` runs a region by, if it is not reentrant.

Its first argument is the region's function. `preserve_rng_state` is the second one up to 2.13, and
given by its name since 2.14.
"""
_apply = vars(Function)["apply"]
IS_APPLY_OF_C = not isinstance(_apply, classmethod)
"""Whether `f = X.apply` of a user's autograd function is C's own, so that nothing can replace it.

Since 2.14. Before, such an `f` looks `apply` up in `APPLY_OWNER` when it is called.
"""
APPLY_OWNER: type = SingleLevelFunction
if IS_APPLY_OF_C:
    APPLY_OWNER = Function
"""The class whose `apply` a call of any autograd function ends in."""
MODULE_CALL = "_call_impl"
"""How an `nn.Module` is called: `(module, *args, **options) -> outputs`."""
PRETENDED_GPUS = "_ensureCUDADeviceGuardSet"
"""What registers GPUs in torch's own library where torch finds none."""


def is_random_state_kept(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a region draws the same random numbers when it runs again.

    Args:
        arguments: What the function named `REGION` is given, by position.
        options: What it is given by name.
    """
    if "preserve_rng_state" in options:
        return bool(options["preserve_rng_state"])
    return bool(arguments[1])


def mixes_devices(error: Exception) -> bool:
    """Return whether fake tensors refused an op because its inputs are on several devices."""
    mismatch = getattr(fake_tensors, "FakeTensorDeviceMismatchError", None)
    if mismatch is not None:
        return isinstance(error, mismatch)
    if not isinstance(error, RuntimeError):
        return False
    return "found two different devices" in str(error)


def refuses_inference(error: BaseException) -> bool:
    """Return whether torch refused tensors of `torch.inference_mode()`.

    2.12 looks up the storage of a view in a table that lacks it, and says no more than that.
    """
    if not isinstance(error, KeyError):
        return "inference tensor" in str(error).lower()
    frames = traceback.extract_tb(error.__traceback__)
    return any(
        f.name == "__new__" and f.filename.endswith("functional_tensor.py")
        for f in frames
    )


def refuses_generator(error: BaseException) -> bool:
    """Return whether torch refused a `torch.Generator` as an argument of a recorded op."""
    return "argument of type" in str(error) and "Generator" in str(error)


class FunctionContext(BackwardCFunction):
    """The context between an autograd function's passes. Subclasses add attributes."""

    # Torch's stub says that there is one of each.
    saved_tensors: tuple[torch.Tensor, ...]  # type: ignore[assignment]
    needs_input_grad: tuple[bool, ...]  # type: ignore[assignment]


def gather_flat(
    output: torch.Tensor, shard: torch.Tensor, group: ProcessGroup | None
) -> None:
    """All-gather the shards of a group's processes into one tensor.

    Args:
        output: What is written. [processes * shard's rows, ...]
        shard: This process's shard.
        group: The group of processes; None: all of them.
    """
    # Since 2.13 the older name warns of each use.
    gather = getattr(distributed, "all_gather_single", None)
    if gather is None:
        gather = distributed.all_gather_into_tensor
    gather(output, shard, group=group)


def scatter_flat(
    output: torch.Tensor, whole: torch.Tensor, group: ProcessGroup | None
) -> None:
    """Add up tensors over a group and leave each process a shard: a reduce-scatter.

    Args:
        output: This process's shard, which is written.
        whole: What is added up. [processes * output's rows, ...]
        group: The group of processes; None: all of them.
    """
    scatter = getattr(distributed, "reduce_scatter_single", None)
    if scatter is None:
        scatter = distributed.reduce_scatter_tensor
    scatter(output, whole, group=group)


def call_after_backward(callback: Callable[[], None]) -> None:
    """Have autograd call back when the backward pass that is running is over.

    Must be called during a backward pass, such as from a tensor's hook.

    Raises:
        VersionError: The installed torch has no such engine.
    """
    engine: Any = read_private(Variable, "_execution_engine", "torch")
    engine.queue_callback(callback)
