"""What training needs besides a step: data set and convergence, by family of the zoo.

Every figure says where it comes from; ``assumed`` means that we chose it and nothing more. Give
``--examples`` and ``--epochs-table`` (or ``--least-epochs``, ``--critical-batch``) instead.

* images: 1,281,167 training images of ILSVRC 2012 (Russakovsky et al., 2015). 90 epochs are the
  schedule of Goyal et al. (2017, arXiv 1706.02677) for ResNet-50, which kept its accuracy up to a
  batch of 8,192; that the epochs double there is assumed, and that all image models are alike.
* translation: 4.5 million sentence pairs of WMT 2014 English-German (Vaswani et al., 2017, section
  5.1). Epochs and critical batch are assumed.
* language: One Billion Word, about 0.8 billion words (Jozefowicz et al., 2016, arXiv 1602.02410),
  in texts of 20 words, as their BigLSTM is unrolled. Epochs and critical batch are assumed.
* any: all assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnplace.plans.hybrid.convergence import CriticalBatch


@dataclass(frozen=True)
class Preset:
    """A data set and how training on it converges.

    Attributes:
        name: the name of the family.
        examples: in an epoch.
        examples_source: where that comes from.
        convergence: epochs by batch.
    """

    name: str
    examples: int
    examples_source: str
    convergence: CriticalBatch


PRESETS = {
    "images": Preset(
        "images",
        1_281_167,
        "ILSVRC 2012, Russakovsky et al. 2015",
        CriticalBatch(90.0, 8_192.0, "90 epochs: Goyal et al. 2017; critical batch: assumed"),
    ),
    "translation": Preset(
        "translation",
        4_500_000,
        "WMT 2014 English-German, Vaswani et al. 2017",
        CriticalBatch(6.0, 4_096.0, "assumed"),
    ),
    "language": Preset(
        "language",
        40_000_000,
        "One Billion Word in texts of 20 words, Jozefowicz et al. 2016",
        CriticalBatch(5.0, 4_096.0, "assumed"),
    ),
    "any": Preset("any", 1_000_000, "assumed", CriticalBatch(10.0, 4_096.0, "assumed")),
}
FAMILIES = {
    "images": (
        "inception,inception_v3,resnet50,resnext50,small_resnet,densenet,densenet121,nasnet,"
        "nasnetamobile,searched_cnn,vit,vgg16,alexnet"
    ),
    "translation": "gnmt,seq2seq",
    "language": "rnn_lm,searched_rnn,big_lstm",
}


def preset_of(model: str) -> Preset:
    """The preset of a model by its zoo name or the name of its profile; ``any`` if it has none."""
    name = model.partition("?")[0].removeprefix("zoo:")
    for family, members in FAMILIES.items():
        if name in members.split(","):
            return PRESETS[family]
    return PRESETS["any"]
