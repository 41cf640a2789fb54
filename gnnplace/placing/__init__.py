"""The verbs that place a problem: ``place``, ``compare``, and the table of placers by name.

* `roster`: the table of all placers (`ROSTER`), which finds the placer that a name means with the
  options written behind it, and the verbs that use it.
* `sizes`: the number of micro-batches, if nobody says it (`SizedModel`, `choose_microbatches`).
* `warming`: compiles the kernels of placers before somebody waits for them.
* `first_answer`: a placement in plain Python while the kernels are compiled.

Callers are the verbs of the package, `run`, `plans`, `explaining`, `report`, `bench` and the
command line; all import from this file alone. Placers are those of `placers` and of `policy`. Names
are imported when they are first used, so that a placer's name is looked up without torch or numba.
The room never measures a step: a placement is scored by `simulation`.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.placing.first_answer import (
        writing_first_answer as writing_first_answer,
    )
    from gnnplace.placing.roster import DEFAULT_BUDGET as DEFAULT_BUDGET
    from gnnplace.placing.roster import ROSTER as ROSTER
    from gnnplace.placing.roster import THROUGHPUT as THROUGHPUT
    from gnnplace.placing.roster import TIME as TIME
    from gnnplace.placing.roster import Failure as Failure
    from gnnplace.placing.roster import PlaceOptions as PlaceOptions
    from gnnplace.placing.roster import check_budget as check_budget
    from gnnplace.placing.roster import compare as compare
    from gnnplace.placing.roster import compare_intervals as compare_intervals
    from gnnplace.placing.roster import find_placer as find_placer
    from gnnplace.placing.roster import list_shown_placers as list_shown_placers
    from gnnplace.placing.roster import make_placer as make_placer
    from gnnplace.placing.roster import make_placer_for as make_placer_for
    from gnnplace.placing.roster import place as place
    from gnnplace.placing.roster import placer_names as placer_names
    from gnnplace.placing.roster import placer_options as placer_options
    from gnnplace.placing.sizes import Size as Size
    from gnnplace.placing.sizes import SizedModel as SizedModel
    from gnnplace.placing.sizes import choose_microbatches as choose_microbatches
    from gnnplace.placing.warming import is_warm as is_warm
    from gnnplace.placing.warming import warm as warm

__getattr__, __dir__ = lazy_names(__name__)
