import numpy as np
import pytest

from gnnplace.costs.calibration import (
    NINETY,
    calibrate,
    spread,
    widen_error,
    with_table,
)
from gnnplace.costs.kin import (
    SPECIAL,
    find_kin,
    measure_distance,
    tensor_types,
    uses_tensor_cores,
)
from gnnplace.costs.prediction import (
    MISALIGNED,
    NEIGHBOUR,
    PROVENANCES,
    ROOFLINE,
    TABLE,
    predict,
    predict_in_step,
)
from gnnplace.costs.rows import Record, Rows, from_records, roofline, write_rows
from gnnplace.costs.tables import FOLDER, CostTables, load_shipped_tables
from gnnplace.errors import InputError
from gnnplace.problem.cluster.gpus import GPUS, get_figures


def products(
    m: int, n: int, k: int, dtype: str = "float32", op: str = "matmul"
) -> Rows:
    size = 4 if dtype == "float32" else 2
    moved = size * (m * k + k * n + m * n)
    return from_records([Record(op, dtype, 1.0, m=m, n=n, k=k, bytes=moved)])


def provenance(rows: Rows, kind: str, tables: CostTables | None = None) -> str:
    found = predict(rows, kind, tables or load_shipped_tables())
    return PROVENANCES[found.provenance[0]]


def test_a_measured_row_is_given_back_within_its_error() -> None:
    tables = load_shipped_tables()
    for kind in ("a100-80", "h100", "v100", "l4"):
        rows = tables.rows[kind]
        mine = rows.take((rows.op == "matmul") & (rows.dtype == "float32"))
        found = predict(mine, kind, tables)
        off = np.abs(np.log(found.seconds / mine.seconds))
        assert np.mean(off <= NINETY * found.error) > 0.9
        assert (found.provenance == PROVENANCES.index(TABLE)).mean() > 0.9


def test_every_kind_gets_a_time_for_every_type_and_family() -> None:
    ops = [
        Record("matmul", "float32", 1.0, m=512, n=512, k=512, bytes=3 << 20),
        Record("matmul.backward", "bfloat16", 1.0, m=512, n=512, k=512, bytes=3 << 19),
        Record(
            "convolution.weight",
            "float32",
            1.0,
            m=9999,
            n=64,
            k=576,
            window=9,
            bytes=9 << 20,
        ),
        Record("attention_backward", "float16", 1.0, 32, 512, 512, 64, 1, 9 << 20),
        Record("an_op_of_tomorrow", "float32", 1.0, m=99, n=99, bytes=9999),
        *(Record(op, "bfloat16", 1.0, m=99, n=99, bytes=9999) for op in SPECIAL),
    ]
    rows = from_records(ops)
    for kind in GPUS:
        found = predict(rows, kind, load_shipped_tables())
        assert np.isfinite(found.seconds).all()
        assert (found.seconds > 0).all()
        assert ((found.error > 0) & (found.error < 3)).all()
        assert all(found.source)


def test_provenance_is_the_table_then_a_neighbour_then_the_roofline() -> None:
    rows = products(2048, 4096, 1024)
    assert provenance(rows, "a100-80") == TABLE
    # No float32 table; that of another GPU.
    assert provenance(rows, "h200") == NEIGHBOUR
    bare = CostTables({}, load_shipped_tables().errors)
    assert provenance(rows, "h200", bare) == ROOFLINE


def test_a_gpu_without_tables_is_scaled_by_its_own_roofline() -> None:
    rows = products(8192, 8192, 8192, "bfloat16")
    h100 = predict(rows, "h100", load_shipped_tables()).seconds[0]
    gh200 = predict(rows, "gh200", load_shipped_tables()).seconds[0]
    assert gh200 == pytest.approx(h100, rel=0.35)
    assert predict(rows, "rtx-3090", load_shipped_tables()).seconds[0] > 5 * h100


def test_a_size_that_is_no_multiple_of_eight_is_slow_in_half_precision_alone() -> None:
    for dtype, factor in (("bfloat16", MISALIGNED), ("float32", 1.0)):
        even = predict(
            products(4096, 50256, 1024, dtype), "h100", load_shipped_tables()
        )
        odd = predict(products(4096, 50257, 1024, dtype), "h100", load_shipped_tables())
        assert odd.seconds[0] == pytest.approx(factor * even.seconds[0], rel=0.02)
        assert (odd.error[0] > even.error[0]) == (factor > 1)


def test_convolutions_use_tensor_cores_where_there_are_any() -> None:
    row = Record("convolution", "float32", 1.0, m=12 * 56 * 56, n=256, k=1152, window=9,
                 bytes=4 * 12 * 56 * 56 * 384)  # fmt: skip
    rows = from_records([row])
    plain = roofline("a100", rows)[0]
    # Of float32 without TF32.
    assert predict(rows, "a100", load_shipped_tables()).seconds[0] < plain


def test_an_error_grows_with_the_distance_to_what_was_measured() -> None:
    errors = [
        predict(products(m, m, m), "a100-80", load_shipped_tables()).error[0]
        for m in (2048, 8, 1)
    ]
    assert errors[0] < errors[1] <= errors[2]


def test_a_table_of_ones_own_goes_first(tmp_path) -> None:
    made = [
        Record(
            "matmul", "float32", 7e-3 * s**3, m=512 * s, n=512 * s, k=512 * s, bytes=99
        )
        for s in (1, 2, 4, 8)
    ]
    path = tmp_path / "mine.csv"
    write_rows(path, {"H100": from_records(made)})
    tables = with_table(path)
    found = predict(products(1024, 1024, 1024), "h100", tables)
    assert found.seconds[0] == pytest.approx(7e-3 * 8, rel=0.3)
    assert found.source[0].startswith("table: h100")


def test_a_table_of_an_unknown_kind_is_refused(tmp_path) -> None:
    path = tmp_path / "mine.csv"
    write_rows(path, {"abacus": products(2, 2, 2)})
    with pytest.raises(InputError, match="abacus"):
        with_table(path)


def test_the_tables_are_small_and_every_row_is_of_a_known_kind() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1e6
    for kind, rows in load_shipped_tables().rows.items():
        assert get_figures(kind).product
        assert len(rows) > 50
        assert (rows.seconds > 1e-7).all()


def test_errors_on_disk_are_those_of_the_rows_on_disk() -> None:
    few = {kind: load_shipped_tables().rows[kind] for kind in ("a40", "titan-xp", "l4")}
    again = calibrate(few)
    assert set(again) == set(load_shipped_tables().errors)
    assert again["local"]["matmul"][0] > 0


def test_spread_holds_nine_in_ten_and_weighs_tries_alike() -> None:
    normal = np.random.default_rng(0).normal(0, 0.2, 20000)
    assert spread([normal]) == pytest.approx(0.2, rel=0.05)
    assert spread([normal, np.full(2, 5.0)]) > 1  # half of the weight
    assert widen_error(1.0, 3) > widen_error(1.0, 30) > 1


def test_the_nearest_gpu_of_products_has_the_same_watts_a_flop() -> None:
    others = [kind for kind in GPUS if kind != "h200"]
    nearest = min(
        others, key=lambda kind: measure_distance("h200", kind, "matmul", "bfloat16")
    )
    assert nearest in ("h100", "gh200")
    assert measure_distance("h200", "h200", "matmul", "bfloat16") == 0


def test_kin_end_somewhere() -> None:
    for op in (
        "matmul.backward",
        "convolution.weight",
        "attention_backward",
        "whatever",
    ):
        seen = [op]
        while find_kin(seen[-1]):
            seen.append(find_kin(seen[-1]))
            assert len(seen) < 6


def convolution(m: int, n: int, k: int, dtype: str = "float32") -> Rows:
    moved = 4 * (m * k // 9 + k * n + m * n)
    record = Record("convolution", dtype, 1.0, m=m, n=n, k=k, window=9, bytes=moved)
    return from_records([record])


def test_types_of_tensor_cores_answer_for_each_other() -> None:
    assert uses_tensor_cores("a100", "tf32")
    assert uses_tensor_cores("v100", "float16")
    assert not uses_tensor_cores("v100", "bfloat16")
    assert not uses_tensor_cores("p100", "float16")
    assert tensor_types("a100", "convolution", "tf32", "v100") == ("float16",)
    assert tensor_types("a100", "add", "tf32", "v100") == ()
    assert tensor_types("p100", "convolution", "float16", "v100") == ()
    [source] = predict(
        convolution(12 * 56 * 56, 64, 576, "bfloat16"), "h100", load_shipped_tables()
    ).source
    assert source in (
        "neighbour: v100 convolution float16",
        "neighbour: t4 convolution float16",
    )


@pytest.mark.parametrize(("m", "n", "k"), [(12 * 56 * 56, 64, 576), (49, 8, 72)])
def test_a_convolution_takes_tf32_where_it_is_faster(m: int, n: int, k: int) -> None:
    asked = convolution(m, n, k)
    both = predict(asked, "a100", load_shipped_tables()).seconds
    plain = predict(asked, "a100", load_shipped_tables(), tf32=()).seconds
    tensor = predict(
        convolution(m, n, k, "tf32"), "a100", load_shipped_tables(), tf32=()
    ).seconds
    assert both == pytest.approx(np.minimum(plain, tensor))


def test_one_stride_is_told_from_another_by_the_bytes_read() -> None:
    one = convolution(1000, 64, 576)
    two = from_records(
        [Record("convolution", "float32", 1.0, m=1000, n=64, k=576, window=9,
                bytes=4 * (4 * 1000 * 64 + 576 * 64 + 1000 * 64))]
    )  # fmt: skip
    assert one.at[0, 5] == 0
    assert two.at[0, 5] == 2
    assert np.array_equal(one.at[0, :5], two.at[0, :5])


def test_products_of_a_gpu_at_its_power_limit_are_faster_in_a_step() -> None:
    """L4's alone take 1.6 times as long; other types, GPUs and tables of one's own do not."""

    def ratio(rows: Rows, kind: str, tables: CostTables) -> float:
        alone, step = (
            way(rows, kind, tables).seconds[0] for way in (predict, predict_in_step)
        )
        return float(alone / step)

    wide, half = products(2048, 2048, 2048), products(2048, 2048, 2048, "bfloat16")
    mine = (
        load_shipped_tables()
        .rows["l4"]
        .take(np.arange(len(load_shipped_tables().rows["l4"])))
    )
    own = CostTables(
        {**load_shipped_tables().rows, "l4": mine}, load_shipped_tables().errors
    )
    assert ratio(wide, "l4", load_shipped_tables()) == pytest.approx(1.6)
    for rows, kind, tables in (
        (half, "l4", load_shipped_tables()),
        (wide, "t4", load_shipped_tables()),
        (wide, "l4", own),
    ):
        assert ratio(rows, kind, tables) == 1.0
