"""The lightning room: LightningModules trained placed. Importing it imports Lightning."""

from gnnplace.lightning.strategy import PlacedStrategy as PlacedStrategy
