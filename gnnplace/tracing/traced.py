"""What torch traced: a graph and the meaning of its ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx


@dataclass(frozen=True)
class Slot:
    """What a placeholder or an output of a traced graph means.

    Attributes:
        kind: What it is: a placeholder is a "parameter", "buffer", "constant", "input" or
            "tangent", an output is "loss", "output", "gradient", "buffer" or "ignored".
        name: Qualified name in `StepModule` (of a gradient: its parameter's; of an input: its
            position; of the rest: empty).
    """

    kind: str
    name: str


@dataclass(frozen=True)
class Traced:
    """A functional ATen graph and the meaning of its ends.

    Attributes:
        graph: The graph.
        inputs: By placeholder name.
        outputs: Slot and node of every output that exists.
        tensors: Parameters, buffers and constants by qualified name (fake of a fake model).
        notes: What was seen while it was traced that people should know, each in one line.
    """

    graph: fx.Graph
    inputs: dict[str, Slot]
    outputs: tuple[tuple[Slot, fx.Node], ...]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
