"""Machine and versions of a measurement."""

from __future__ import annotations

import json

import torch

from gnnplace.problem.cluster.machine import describe_machine, list_versions


def test_they_say_what_times_depend_on():
    about = json.loads(json.dumps(describe_machine()))
    assert about["cores"] >= 1
    assert about["memory"] > 1e8
    assert about["cpu"]
    assert list_versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]
