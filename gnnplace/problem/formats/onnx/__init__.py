"""Reader of ONNX models.

`messages` parses, `shapes` infers sizes, `operators` counts, and `reader` builds the problem.
"""

from gnnplace.problem.formats.onnx.reader import read_onnx

__all__ = ["read_onnx"]
