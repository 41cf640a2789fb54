"""A joint plan run in plain PyTorch, in the order of its actions.

A plan goes through this package from the top. `run_plan` forks the plan's processes (or is one of
those that torchrun started), tries the plan against the user's own step (`trial`), and times it; a
`PlanRun` has what was compared and measured. `apply_plan` makes a model train as the plan says and
returns its `PlanRunner`, whose `step(batch)` gives the loss: it gives every process its seat, cuts
the model's calls into stages, splits parameters, and executes the actions. `split_model` does the
same for a model's own forward pass, whose layers are split over a mesh.

`gnnplace`, the command line and `report` call it, and the `apply` of a plan (`planning/plans.py`,
`planning/sharded.py`). It never prices, searches or changes a plan: what cannot be run as the plan
says is refused.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.planned.apply import apply_plan as apply_plan
    from gnnplace.run.planned.forward import make_mesh_here as make_mesh_here
    from gnnplace.run.planned.forward import split_model as split_model
    from gnnplace.run.planned.runner import PlanRunner as PlanRunner
    from gnnplace.run.planned.running import PlanRun as PlanRun
    from gnnplace.run.planned.running import run_plan as run_plan
    from gnnplace.run.planned.stages import check_model as check_model

__getattr__, __dir__ = lazy_names(__name__)
