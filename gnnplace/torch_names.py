"""Private names of torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from torch import _C as c_library
from torch import nn
from torch.autograd import Variable
from torch.utils import checkpoint

from gnnplace.foreign import foreign_names, patch_private, read_private

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
    from torch._C._functorch import is_functorch_wrapped_tensor as is_functorch_wrapped_tensor
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
    from torch._subclasses.fake_tensor import (
        FakeTensorDeviceMismatchError as FakeTensorDeviceMismatchError,
    )
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import (
        in_kernel_invocation_manager as in_kernel_invocation_manager,
    )
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
    from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
    from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction
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
    from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
    from torch.utils._python_dispatch import (
        _get_current_dispatch_mode_stack as get_current_dispatch_mode_stack,
    )
    from torch.utils._pytree import tree_map_only as tree_map_only

__getattr__, __dir__ = foreign_names(__name__, "torch")

REGION = "_checkpoint_without_reentrant_generator"
"""What `torch.utils.checkpoint` runs a region by, if it is not reentrant."""
MODULE_CALL = "_call_impl"
"""How an `nn.Module` is called: `(module, *args, **options) -> outputs`."""
PRETENDED_GPUS = "_ensureCUDADeviceGuardSet"
"""What registers GPUs in torch's own library where torch finds none."""


def call_after_backward(callback: Callable[[], None]) -> None:
    """Have autograd call back when the backward pass that is running is over.

    Must be called during a backward pass, such as from a tensor's hook.

    Raises:
        VersionError: The installed torch has no such engine.
    """
    engine: Any = read_private(Variable, "_execution_engine", "torch")
    engine.queue_callback(callback)
