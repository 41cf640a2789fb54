import pytest

from gnnplace.errors import InputError
from gnnplace.problem.cluster.gpus import ALIASES, CPU, GPUS, find_kind, get_figures


def test_every_kind_has_figures_of_all_types_and_a_source() -> None:
    for kind, gpu in GPUS.items():
        assert gpu.memory >= 8e9, kind
        assert 100e9 < gpu.bandwidth < 1e13, kind
        assert set(gpu.rates) == {"float32", "tf32", "float16", "bfloat16"}, kind
        assert all(gpu.flops(name) >= gpu.flops("float32") for name in gpu.rates), kind
        assert gpu.source


def test_other_names_of_a_kind_are_known() -> None:
    assert all(find_kind(name) == kind for name, kind in ALIASES.items())
    assert get_figures("A100-80GB") is GPUS["a100-80"]
    assert get_figures("rtx_3090") is GPUS["rtx-3090"]
    assert get_figures("a100-40").memory == 40e9
    assert get_figures("cpu") is CPU
    assert find_kind("abacus") is None


def test_an_unlisted_type_runs_at_float32_rates() -> None:
    assert get_figures("h100").flops("int64") == get_figures("h100").flops("float32")


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'abacus'.*h200.*rtx-pro-6000"):
        get_figures("abacus")
