from __future__ import annotations

import pytest

from gnnplace import zoo
from gnnplace.bench.models.densenet import DEPTHS
from gnnplace.errors import InputError


def test_densenet_121_has_the_papers_parameters():
    model = zoo.build("densenet", layers="121", growth=32, classes=1000).model
    # 7,978,856 with the paper's 7x7 stem and its norm; the stem here is 3x3 without one.
    stem = 3 * 64 * (49 - 9) + 2 * 64
    assert sum(p.numel() for p in model.parameters()) + stem == 7_978_856
    assert sum(DEPTHS["121"]) * 2 + 5 == 121


def test_other_depths_are_refused():
    with pytest.raises(InputError, match="layers 7: unknown; there are 121, 40, 22"):
        zoo.build("densenet", layers=7)
