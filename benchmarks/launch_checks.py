"""Launch files, read by the launchers' own code from its sources, without GPUs.

``benchmarks.launch_files`` starts ``python -m benchmarks.launch_checks LAUNCHER SOURCES REQUEST``
in a process of its own for each launcher. SOURCES is the folder of the launcher's sources; packages
that these need and the environment lacks come from PYTHONPATH. Kernels are not needed to read a
file: what is missing of triton and its like is stood in for by mocks.

What a launcher makes of a file is compared with what the file was written for: the sizes, the
rotary base and scaling, the epsilon of norms and biases.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

KERNELS = (
    "triton",
    "flash_attn",
    "grouped_gemm",
    "deep_ep",
    "datatrove",
    "wandb",
    "functorch_x",
)
"""Packages that are stood in for where a launcher asks for them."""


@dataclass(frozen=True)
class Request:
    """A file, and what it was written for.

    Attributes:
        path: The file.
        world: Processes of its run.
        stages: Pipeline ranks of these.
        parameters: Of the model.
        layers: Of the model.
        hidden: Width of the model.
        rotary_base: None if it is not known.
        rotary_factor: Of Llama 3's scaling; None: there is none.
        norm_epsilon: None if it is not known.
        query_biases: Whether queries, keys and values have biases.
    """

    path: str
    world: int
    stages: int
    parameters: int
    layers: int
    hidden: int
    rotary_base: float | None
    rotary_factor: float | None
    norm_epsilon: float | None
    query_biases: bool


class _Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for packages of kernels that are not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] not in KERNELS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__name__, module.__path__ = spec, spec.name, []
        module.__version__ = "3.0.0"
        return typing.cast("ModuleType", module)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in() -> None:
    """Let launchers import without kernels, on this version of Python."""
    import torch._dynamo
    import torch._higher_order_ops.triton_kernel_wrap
    import torch._inductor.compile_fx
    import torch.utils._triton

    torch.utils._triton.has_triton_package = lambda: False
    sys.meta_path.append(_Kernels())
    if not hasattr(typing, "override"):  # Python 3.12's
        typing.override = lambda function: function  # type: ignore[attr-defined]


def differences(pairs: Mapping[str, tuple[Any, Any]]) -> str:
    """Format what a launcher makes of a file otherwise; an expected None is not compared."""
    lines = [
        f"{name} is {value}, not {expected}"
        for name, (value, expected) in pairs.items()
        if expected is not None and value != expected
    ]
    return "; ".join(lines)


def arguments_of_script(path: str) -> tuple[list[str], dict[str, str]]:
    """Return what a script gives to the program that its torchrun starts; bash runs the script.

    Returns:
        The arguments, and the variables of CUDA that the script exports.
    """
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder) / "torchrun"
        launcher.write_text(
            '#!/bin/bash\nprintf "%s\\0" "$@" > "$ARGUMENTS"; env -0 > "$ARGUMENTS.env"\n'
        )
        launcher.chmod(0o755)
        listed = Path(folder) / "arguments"
        search = f"{folder}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": search, "ARGUMENTS": str(listed)}
        subprocess.run(["bash", path], check=True, env=environment)
        words = listed.read_text().split("\0")[:-1]
        pairs = Path(f"{listed}.env").read_text().split("\0")[:-1]
    exported = dict(pair.split("=", 1) for pair in pairs if pair.startswith("CUDA_"))
    return words[words.index("pretrain_gpt.py") + 1 :], exported


def check_megatron(request: Request) -> str:
    """`parse_args`, `validate_args` and `core_transformer_config_from_args`, as on H100."""
    import torch
    from megatron.training.arguments import (
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )

    # The fusion of rotary positions is on by default, and needs Transformer Engine.
    words, exported = arguments_of_script(request.path)
    words.append("--no-rope-fusion")
    device = mock.Mock(major=9, minor=0, multi_processor_count=132)
    environment = {"WORLD_SIZE": str(request.world), "RANK": "0", **exported}
    with (
        mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=device),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(torch.cuda, "device_count", return_value=8),
    ):
        args = parse_args()
        validate_args(args)
        config = core_transformer_config_from_args(args)
    factor = args.rope_scaling_factor if args.use_rope_scaling else None
    return differences(
        {
            "num_layers": (config.num_layers, request.layers),
            "hidden_size": (config.hidden_size, request.hidden),
            "layernorm_epsilon": (config.layernorm_epsilon, request.norm_epsilon),
            "add_qkv_bias": (config.add_qkv_bias, request.query_biases or None),
            "rotary_base": (args.rotary_base, request.rotary_base),
            "rope_scaling_factor": (factor, request.rotary_factor),
        }
    )


def check_nanotron(request: Request) -> str:
    """`get_config_from_file`."""
    from nanotron.config import get_config_from_file

    config = get_config_from_file(request.path)
    model, parallel = config.model.model_config, config.parallelism
    return differences(
        {
            "processes": (parallel.dp * parallel.tp * parallel.pp, request.world),
            "num_hidden_layers": (model.num_hidden_layers, request.layers),
            "hidden_size": (model.hidden_size, request.hidden),
            "rms_norm_eps": (model.rms_norm_eps, request.norm_epsilon),
            "rope_theta": (model.rope_theta, request.rotary_base),
            "attention_bias": (
                getattr(model, "attention_bias", False),
                request.query_biases or None,
            ),
        }
    )


def check_torchtitan(request: Request) -> str:
    """`ConfigManager`, `update_from_config`, and the model on the meta device."""
    import torch
    from torchtitan.config.manager import ConfigManager

    name = Path(request.path).stem
    spec = importlib.util.spec_from_file_location(name, request.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    config = ConfigManager().parse_args(["--module", name, "--config", "gnnplace_plan"])
    with mock.patch.dict(os.environ, {"WORLD_SIZE": str(request.world)}):
        config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    rope = config.model_spec.model.layers[0].attention.rope
    factor = rope.scaling_factor if rope.scaling == "llama" else None
    parallel = config.parallelism
    processes = (
        parallel.data_parallel_replicate_degree * parallel.data_parallel_shard_degree
    )
    processes *= parallel.tensor_parallel_degree * parallel.pipeline_parallel_degree
    return differences(
        {
            "processes": (processes * parallel.context_parallel_degree, request.world),
            "parameters": (
                sum(p.numel() for p in model.parameters()),
                request.parameters,
            ),
            "theta": (rope.theta, request.rotary_base),
            "scaling_factor": (factor, request.rotary_factor),
            "eps": (config.model_spec.model.norm.eps, request.norm_epsilon),
        }
    )


def check_deepspeed(request: Request) -> str:
    """`DeepSpeedConfig`, which a pipeline of the script tells its replicas."""
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    with (
        mock.patch.object(comm, "get_world_size", return_value=request.world),
        mock.patch.object(comm, "get_rank", return_value=0),
    ):
        replicas = mock.Mock()
        replicas.get_data_parallel_world_size.return_value = (
            request.world // request.stages
        )
        DeepSpeedConfig(request.path, replicas if request.stages > 1 else None)
    return ""


def check_accelerate(request: Request) -> str:
    """What `accelerate launch` makes of it: its arguments, FSDP's plugin, and the mesh."""
    from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.commands.launch import (
        _validate_launch_command,
        launch_command_parser,
    )
    from accelerate.utils.launch import prepare_multi_gpu_env

    args = launch_command_parser().parse_args(
        ["--config_file", request.path, "train.py"]
    )
    args, _, _ = _validate_launch_command(args)
    args.main_process_port = 29511
    with mock.patch.dict(os.environ, {}):
        os.environ.update(prepare_multi_gpu_env(args))
        if args.use_fsdp:
            FullyShardedDataParallelPlugin()
        ParallelismConfig()
    return differences({"processes": (args.num_processes, request.world)})


def check_bridge(request: Request) -> str:
    """The names of its overrides are fields of the classes in its sources, and Megatron-LM's.

    Its packages do not import without Transformer Engine, so that nothing of it is run.
    """
    known = set(_fields(Path(sys.argv[2])))
    lines = Path(request.path).read_text().splitlines()
    keys = [
        line.partition("=")[0] for line in lines if line and not line.startswith("#")
    ]
    unknown = [key for key in keys if key.rpartition(".")[2] not in known]
    return f"no field of its classes: {', '.join(unknown)}" if unknown else ""


def _fields(folder: Path) -> Iterator[str]:
    """Yield the names of annotated fields of all classes in a folder of sources."""
    names = (
        Path(root) / name
        for root, _, files in os.walk(folder, followlinks=True)
        for name in files
        if name.endswith(".py")
    )
    for path in names:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(
                        field.target, ast.Name
                    ):
                        yield field.target.id


CHECKS: Mapping[str, Callable[[Request], str]] = {
    "megatron-lm": check_megatron,
    "megatron-bridge": check_bridge,
    "torchtitan": check_torchtitan,
    "nanotron": check_nanotron,
    "deepspeed": check_deepspeed,
    "accelerate": check_accelerate,
}


def main() -> int:
    """Print the error of every file of a request as JSON; an empty one is accepted."""
    launcher, sources, requests = sys.argv[1:]
    if launcher not in ("accelerate", "megatron-bridge"):
        for folder in (sources, f"{sources}/src"):
            sys.path.insert(0, folder)
        stand_in()
    errors = []
    for entry in json.loads(Path(requests).read_text()):
        try:
            errors.append(CHECKS[launcher](Request(**entry)))
        except (Exception, SystemExit) as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            errors.append(f"{type(error).__name__}: {lines[0][:200]}")
    Path(f"{requests}.errors").write_text(json.dumps(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
