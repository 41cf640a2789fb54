"""LightningModules of one's own trained placed. Importing it imports Lightning."""

from gnnplace.run.training import PlacedStrategy as PlacedStrategy
