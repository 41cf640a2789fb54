"""Writes the machine-readable descriptions of data sets that nobody built here anew.

    python -m benchmarks.describe

``gnnplace data build`` writes ``croissant.json`` beside what it builds. The committed graphs are
older than that; theirs are written here from their recipes and files. DOPPLER's graphs are others'.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gnnplace.train.data.build import description_of
from gnnplace.train.data.captured import shipped_store
from gnnplace.train.data.croissant import DataSetCard, write_croissant
from gnnplace.train.data.recipes import RECIPES, STORE

DATA_SETS = Path(__file__).parents[1] / "data_sets"
DOPPLER = DataSetCard(
    name="doppler-compute-graphs",
    description="The six compute graphs of DOPPLER (Yao et al., ICLR 2026), unchanged.",
    collection="Copied from compute_graph/ of github.com/xinyuyao/Doppler at 04c66de0aa01.",
    limitations="Costs are counts of work and not measured; six graphs of three networks.",
    use_cases="Testing of device placement beside the published results.",
    creator="Xinyu Yao and others",
    url="https://github.com/xinyuyao/Doppler",
)


def main() -> int:
    """Write all descriptions."""
    for name, recipe in RECIPES.items():
        folder = shipped_store().folder if name == STORE.name else DATA_SETS / name
        write_croissant(folder, sorted(folder.glob("*.npz")), description_of(recipe))
    folder = DATA_SETS / "doppler"
    write_croissant(folder, sorted(folder.glob("*.txt")), DOPPLER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
