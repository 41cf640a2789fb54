"""Measured runs: of one placement, of many placements as an objective, and beside predictions.

* `execute_placement`, `Executed`: a model run as placed, checked and kept in the store;
  `dry_run_placement` without devices, `eager_times` without a placement.
* `MeasuredObjective`: the step times of placements, for whoever searches by running.
* `check_fidelity`, `FidelityOptions`: predicted against measured step times.

`gnnplace`, the command line, `bench`, `train` and `report` call it. It owns no clock and no worker
(`placed`, `workers`), and no price (`costs`, `simulation`).
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.measuring.eager import eager_step_time as eager_step_time
    from gnnplace.run.measuring.fidelity import FidelityOptions as FidelityOptions
    from gnnplace.run.measuring.fidelity import check_fidelity as check_fidelity
    from gnnplace.run.measuring.objective import MeasuredObjective as MeasuredObjective
    from gnnplace.run.measuring.running import Executed as Executed
    from gnnplace.run.measuring.running import dry_run_placement as dry_run_placement
    from gnnplace.run.measuring.running import eager_times as eager_times
    from gnnplace.run.measuring.running import execute_placement as execute_placement

__getattr__, __dir__ = lazy_names(__name__)
