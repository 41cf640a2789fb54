"""Writes the machine-readable descriptions of data sets that nobody built here anew.

    python -m benchmarks.describe [--pipedream CLONE] [--dnn-partitioning CLONE]

``gnnplace data build`` writes ``croissant.json`` beside what it builds. The committed graphs are
older than that; theirs are written here from their recipes and files. DOPPLER's graphs are others'.
The files of PipeDream and dnn-partitioning are not committed: their descriptions say where they
are, and are written from a clone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gnnplace.files import read_text, write_text
from gnnplace.train.data.build import describe_recipe
from gnnplace.train.data.captured import open_shipped_store
from gnnplace.train.data.collected import path_in_clone
from gnnplace.train.data.croissant import DataSetCard, write_croissant
from gnnplace.train.data.datasets import write_sums
from gnnplace.train.data.recipes import RECIPES, STORE

DATA_SETS = Path(__file__).parents[1] / "data_sets"
MIT = "https://opensource.org/license/mit"
RAW = "https://raw.githubusercontent.com/msr-fiddle/{}/{}/{}"
PROFILED = {
    "image_classification": [
        "alexnet",
        "densenet121",
        "inception_v3",
        "nasnetalarge",
        "nasnetamobile",
        "resnet101",
        "resnet18",
        "resnet50",
        "resnext101",
        "resnext50",
        "squeezenet1_0",
        "vgg16",
    ],
    "translation": ["gnmt", "gnmt_large"],
}
WORKLOADS = {
    "layer": [
        "bert24_inference",
        "bert24_training",
        "gnmt_inference",
        "gnmt_training",
        "inceptionv3_inference",
        "inceptionv3_training",
        "resnet50_inference",
        "resnet50_training",
    ],
    "operator": [
        "bert_L-12_training",
        "bert_l-12_inference",
        "bert_l-3_inference",
        "bert_l-3_training",
        "bert_l-6_inference",
        "bert_l-6_training",
        "resnet50_inference",
        "resnet50_training",
    ],
}
DOPPLER = DataSetCard(
    name="doppler-compute-graphs",
    description="The six compute graphs of DOPPLER (Yao et al., ICLR 2026), unchanged.",
    collection="Copied from compute_graph/ of github.com/xinyuyao/Doppler at 04c66de0aa01.",
    limitations="Costs are counts of work and not measured; six graphs of three networks.",
    use_cases="Testing of device placement beside the published results.",
    creator="Xinyu Yao and others",
    url="https://github.com/xinyuyao/Doppler",
)


PIPEDREAM = DataSetCard(
    name="pipedream-profiles",
    description="Layer profiles of 14 networks of PipeDream (Narayanan et al., 2019), unchanged.",
    collection="Times of layers on a GPU, by PipeDream's profiler, from its repository.",
    limitations="Times of one GPU; sizes of tensors by layer; the update of weights has no time.",
    use_cases="Testing of device placement and pipelines beside the published results.",
    creator="Microsoft Corporation",
    url="https://github.com/msr-fiddle/pipedream",
    licence=MIT,
    addresses={
        f"{network}.txt": RAW.format(
            "pipedream",
            "7db6a1c3e64996d5b319faec6ca38cb31bfea1c4",
            f"profiler/{task}/profiles/{network}/graph.txt",
        )
        for task, networks in PROFILED.items()
        for network in networks
    },
)
PARTITIONING = DataSetCard(
    name="dnn-partitioning-workloads",
    description="The 16 workloads of Tarnawski et al. (NeurIPS 2020, throughput), unchanged.",
    collection="Profiled layers and operators of BERT, GNMT, Inception-V3, ResNet-50.",
    limitations="Times of one kind of accelerator, those of CPUs ten times as long.",
    use_cases="Testing of device placement beside the published results.",
    creator="Microsoft Corporation",
    url="https://github.com/msr-fiddle/dnn-partitioning",
    licence=MIT,
    addresses={
        f"{kind}-{workload}.json": RAW.format(
            "dnn-partitioning",
            "b207b6ad27a1407d321f1e028cea96d7f2c90e3e",
            f"throughput-inputs/{kind.capitalize()}Graphs/{workload}.json",
        )
        for kind, workloads in WORKLOADS.items()
        for workload in workloads
    },
)


def describe_collected(folder: Path, card: DataSetCard, clone: Path) -> None:
    """Copy the files of a card from a clone, write their sums and description."""
    for name, address in card.addresses.items():
        write_text(folder / name, read_text(clone / path_in_clone(address)))
    names = sorted(card.addresses)
    write_sums(folder, names)
    write_croissant(folder, [folder / name for name in names], card)


def main() -> int:
    """Write all descriptions; those of collected sets if a clone is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--pipedream", type=Path, help="a clone of msr-fiddle/pipedream"
    )
    parser.add_argument(
        "--dnn-partitioning", type=Path, help="a clone of its repository"
    )
    args = parser.parse_args()
    if args.pipedream is not None:
        describe_collected(DATA_SETS / "pipedream", PIPEDREAM, args.pipedream)
    if args.dnn_partitioning is not None:
        describe_collected(
            DATA_SETS / "dnn-partitioning", PARTITIONING, args.dnn_partitioning
        )
    for name, recipe in RECIPES.items():
        folder = open_shipped_store().folder if name == STORE.name else DATA_SETS / name
        write_croissant(folder, sorted(folder.glob("*.npz")), describe_recipe(recipe))
    folder = DATA_SETS / "doppler"
    write_croissant(folder, sorted(folder.glob("*.txt")), DOPPLER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
