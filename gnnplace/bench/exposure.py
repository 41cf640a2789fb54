"""The training of the placers of rows: what they were trained on, which problems they have seen.

Both follow from the training cards beside the weights (``gnnplace.policy.card``); nobody types them
in. A placer without weights has no card and has seen nothing. A placer of somebody else's says what
it was trained on by an attribute ``training_card``: the folder of a card, or None for no training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from gnnplace.errors import GnnplaceError
from gnnplace.placers import parse_name
from gnnplace.placing import ROSTER, find_placer
from gnnplace.policy import GNN_CHECKPOINT as NETWORK
from gnnplace.policy import POLICY_CHECKPOINT as POLICY
from gnnplace.policy import RANDOM, Exhibit, TrainingCard, exposure_reason, read_card
from gnnplace.train import read_model_list

# Written by ``benchmarks/structure.py``.
BLOCKS = Path(__file__).with_name("blocks.json")
WITH_POLICY = ("learned", "best")  # both ask the graph network on large problems, too
WITH_NETWORK = "gnn"
UNDECLARED = "undeclared"
Data = dict[str, Any]


@dataclass(frozen=True)
class PlacerTraining:
    """A placer's training, as far as it is known.

    Attributes:
        cards: Cards of all weights that it may ask; none for a placer without training.
        declared: False if it has weights without a card, or does not say whether it has any.
    """

    cards: tuple[TrainingCard, ...] = ()
    declared: bool = True

    def columns(self) -> Data:
        """Return the part of a row that says what the placer was trained on."""
        families = {family for card in self.cards for family in card.trained.families}
        problems = {
            name for card in self.cards for name in card.trained.problems.values()
        }
        return {
            "parameters": sum(card.parameters for card in self.cards),
            "training_hours": round(sum(card.hours for card in self.cards), 3),
            "trained_on": sorted(families | problems) if self.declared else UNDECLARED,
        }

    def make_seen_columns(self, exhibit: Exhibit) -> Data:
        """Return the part of a row that says whether the placer has seen its problem.

        ``seen`` and ``seen_how`` are by the problem, its graph and its family, ``seen_block`` by
        the structure of its graph (``benchmarks/structure.py``). All are None if it is not known.
        """
        if not self.declared:
            return {"seen": None, "seen_how": UNDECLARED, "seen_block": None}
        reasons = [exposure_reason(card, exhibit) for card in self.cards]
        reason = next(filter(None, reasons), "")
        block = find_block(exhibit.family)
        met = {
            find_block(family)
            for card in self.cards
            for part in (card.trained, card.validated)
            for family in part.families
        }
        return {
            "seen": bool(reason),
            "seen_how": reason,
            "seen_block": bool(reason) or block in met,
        }


@lru_cache(maxsize=64)
def find_training(placer: str) -> PlacerTraining:
    """Return the training of a placer, by its name with options, as far as it is known."""
    try:
        base, options = parse_name(placer)
        folder = options.get("checkpoint")
        if base in WITH_POLICY:
            if "order" in options:
                folders = [folder or POLICY]
            else:
                folders = [folder or POLICY, NETWORK]
        elif base == WITH_NETWORK:
            folders = [folder or NETWORK]
        elif base in ROSTER:
            return PlacerTraining()
        else:
            return _find_declared_training(find_placer(placer)[0].maker())
        cards = [read_card(path) for path in folders]
    except GnnplaceError:
        return PlacerTraining(declared=False)
    read = tuple(card for card in cards if card is not None)
    return PlacerTraining(
        read, len(read) == len(cards) and all(card.complete for card in read)
    )


def _find_declared_training(maker: object) -> PlacerTraining:
    """Return the training that a user's placer class declares."""
    folder = getattr(maker, "training_card", UNDECLARED)
    if folder is None:
        return PlacerTraining()
    if folder == UNDECLARED:
        card = None
    else:
        card = read_card(folder)
    if card is None:
        return PlacerTraining(declared=False)
    return PlacerTraining((card,), card.complete)


@cache
def _list_spec_families() -> dict[str, str]:
    """Return the family of every model that data sets are captured from, by the model's name."""
    groups = [group for group in read_model_list().values() if isinstance(group, list)]
    rows = [row for group in groups for row in group if "spec" in row]
    families = {}
    for row in rows:
        name = str(row["spec"]).partition("?")[0]
        families[name] = str(row["family"])
    return families


def find_model_family(spec: str) -> str:
    """Return the family of a model as cards name it, such as "bert" for "hf:bert-base-uncased"."""
    name = spec.partition("?")[0]
    return _list_spec_families().get(name, name.removeprefix("hf:"))


def find_row_family(problem: str, family: str) -> str:
    """Return the family of a row's problem as cards name it.

    Args:
        problem: Its key, which begins with its source.
        family: Its label.
    """
    source = problem.partition("=")[0]
    if source == "family":
        return f"{RANDOM}{family}"
    if source == "model":
        return find_model_family(family)
    return family


@cache
def _blocks() -> dict[str, str]:
    """Return the block of structurally similar families of every family that was compared."""
    if not BLOCKS.is_file():
        return {}
    data = json.loads(BLOCKS.read_text(encoding="utf-8"))
    blocks: dict[str, Sequence[str]] = data["blocks"]
    return {family: name for name, families in blocks.items() for family in families}


def find_block(family: str) -> str:
    """Return the block that a family is in; the family itself if it was compared with no other."""
    return _blocks().get(family, family)
