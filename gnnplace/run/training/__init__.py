"""A placed training step inside a training loop: `gnnplace.compile` and Lightning's strategy.

`compile` returns a `TrainingStep` for a model, a loss and an optimizer. Called with a batch, it
runs the placed step on standing workers and publishes the loss, parameters and optimizer state to
the user's own objects. `PlacedStrategy` does the same for Lightning's Trainer. A step that would
not be the user's own is refused (`MismatchError`, `UnsupportedError`), never approximated.

`gnnplace` and `gnnplace.lightning` export it; `checking` walks its workers without numbers. It
never times a step for a report.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.training.lightning import PlacedStrategy as PlacedStrategy
    from gnnplace.run.training.opaque_optimizer import make_twin as make_twin
    from gnnplace.run.training.placed_step import PUBLISH as PUBLISH
    from gnnplace.run.training.placed_step import TAKE as TAKE
    from gnnplace.run.training.placed_step import StandingWorker as StandingWorker
    from gnnplace.run.training.training_step import TrainingStep as TrainingStep
    from gnnplace.run.training.training_step import compile as compile

__getattr__, __dir__ = lazy_names(__name__)
