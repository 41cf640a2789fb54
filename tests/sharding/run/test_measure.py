from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from gnnplace.sharding.run.measure import measure_machine
from tests.sharding.mesh_processes import on_processes


def test_all_processes_have_the_same_figures():
    def work(rank):
        found = measure_machine(init_device_mesh("cpu", (2,)))
        return found.flops, found.bandwidth, found.latency, found.overhead

    first, second = on_processes(2, work)
    assert first == second
    assert min(first) > 0
    assert first[2] < 0.1
