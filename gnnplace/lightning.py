"""LightningModules of one's own trained placed. Importing it imports Lightning."""

from gnnplace.execution.lightning import PlacedStrategy as PlacedStrategy
