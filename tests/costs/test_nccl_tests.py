"""Logs in the forms of several versions of nccl-tests, and faults."""

import pytest

from gnnplace.costs.nccl_tests import read_nccl_tests
from gnnplace.errors import FormatError

HEADING = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
ROWS = """\
        1024           256     float     sum      -1    21.30    0.05    0.08      0    21.10    0.05    0.08      0
     1048576        262144     float     sum      -1    45.65   22.97   40.20      0    45.40   23.10   40.42      0
  1073741824     268435456     float     sum      -1   8194.2  131.04  229.31      0   8196.4  131.00  229.25    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 89.87
#
"""  # noqa: E501


def ranks(count, hosts=("node1",), group="Group  0 "):
    each = count // len(hosts)
    return "# Using devices\n" + "".join(
        f"#  Rank {k:2d} {group}Pid {4000 + k} on {hosts[k // each]:>10s} device {k % each:2d} "
        "[0000:07:00] NVIDIA A100-SXM4-80GB\n"
        for k in range(count)
    )


def new(program="all_reduce_perf", count=8, hosts=("node1",), rows=ROWS):
    """As versions from 2.17 on print it."""
    return (
        "# nccl-tests version 2.17.6 nccl-headers=22808 nccl-library=22808\n"
        f"# Collective test starting: {program}\n"
        "# nThread 1 nGpus 8 minBytes 1024 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n#\n"
        f"{ranks(count, hosts)}{HEADING}{rows}# Collective test concluded: {program}\n"
    )


def read(tmp_path, text):
    path = tmp_path / "nccl.log"
    path.write_text(text, encoding="utf-8")
    return read_nccl_tests(path)


def test_a_new_version_says_everything(tmp_path):
    (run,) = read(tmp_path, new())
    assert (run.op, run.servers, run.per_server) == ("all_reduce", 1, 8)
    assert run.rows == [(1024.0, 21.3e-6), (1048576.0, 45.65e-6), (2.0**30, 8194.2e-6)]


def test_runs_after_each_other_and_servers(tmp_path):
    text = (
        new() + "\n" + new("sendrecv_perf", 4, ("a", "b"), ROWS.replace("sum", "sum"))
    )
    one, two = read(tmp_path, text)
    assert (one.op, two.op, two.servers, two.per_server) == ("all_reduce", "p2p", 2, 2)


@pytest.mark.parametrize(
    ("program", "op"),
    [("alltoall_perf", "all_to_all"), ("all_gather_perf_mpi", "all_gather"),
     ("reduce_scatter_perf", "reduce_scatter")],
)  # fmt: skip
def test_programs(tmp_path, program, op):
    assert read(tmp_path, new(program))[0].op == op


def test_an_old_version_is_known_by_its_formula(tmp_path):
    """No name, no root column, `error` for `#wrong`; mpirun's tags; other programs' lines."""
    heading = (
        "#       size         count      type   redop     time   algbw   busbw  error     time   "
        "algbw   busbw  error\n"
        "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)\n"
    )
    rows = (
        "     1048576        262144     float     sum    45.65   22.97   40.20  0e+00    45.40   "
        "23.10   40.42  0e+00\n"
    ).replace("0e+00", "0")
    text = (
        "# nThread 1 nGpus 8\n" + ranks(8, group="") + "node1:99 [0] NCCL INFO Ring 0\n"
    )
    tagged = "".join(
        f"[1,0]<stdout>:{line}\n" for line in (text + heading + rows).splitlines()
    )
    (run,) = read(tmp_path, tagged)
    assert (run.op, run.per_server, run.rows) == (
        "all_reduce",
        8,
        [(1048576.0, 45.65e-6)],
    )


def test_what_nothing_has_a_use_for_is_passed_over(tmp_path):
    runs = read(tmp_path, new("broadcast_perf") + new())
    assert [run.op for run in runs] == ["all_reduce"]


@pytest.mark.parametrize(
    ("change", "line", "told"),
    [
        (("45.65", "4x.65"), 19, "must be numbers"),
        (("    45.65   22.97", "    45.65"), 19, "are not 40.20 GB/s"),
        (("22.97", "99.97"), 19, "1048576 bytes in 45.65 us are not 99.97 GB/s"),
        (
            ("45.65   22.97   40.20      0", "45.65   22.97   40.20     17"),
            19,
            "17 wrong elements",
        ),
        (("8194.2  131.04", "-8194.2  131.04"), 20, "must be positive"),
        ((HEADING, ""), 14, "before the heading"),
        (("#  Rank  1", "#  Rank  0"), 7, "rank 0 is there twice"),
        (("#  Rank  3 Group", "#  Rank Group"), 18, "of rank 3 is missing"),
    ],
)
def test_a_bad_line_is_named(tmp_path, change, line, told):
    text = new().replace(*change, 1)
    assert text != new()
    with pytest.raises(FormatError, match=told) as caught:
        read(tmp_path, text)
    assert f"nccl.log: line {line}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_that_is_cut_off(tmp_path):
    with pytest.raises(FormatError, match="line 19: 4 values, 9 and more expected"):
        read(tmp_path, new().replace("sum      -1    45.65", "sum\n", 1))


def test_faults_of_whole_runs(tmp_path):
    with pytest.raises(FormatError, match="no row of all_reduce_perf"):
        read(tmp_path, "hello\n")
    with pytest.raises(FormatError, match="two GPUs at least"):
        read(tmp_path, new(count=1))
    with pytest.raises(FormatError, match="different numbers of GPUs"):
        read(
            tmp_path,
            new().replace("on      node1 device  7", "on      node2 device  0"),
        )
    unnamed = (
        new("")
        .replace("# Collective test starting: \n", "")
        .replace("     sum", "    none")
    )
    with pytest.raises(FormatError, match="does not name its program"):
        read(tmp_path, unnamed)
