"""What users ask of an answer: pins, forbids, ops that stay together, devices and memory left."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.problem.constraints.applying import (
        apply_constraints as apply_constraints,
    )
    from gnnplace.problem.constraints.applying import limit_memory as limit_memory
    from gnnplace.problem.constraints.constraints import Constraints as Constraints
    from gnnplace.problem.constraints.constraints import (
        ConstraintWords as ConstraintWords,
    )
    from gnnplace.problem.constraints.constraints import (
        as_constraints as as_constraints,
    )
    from gnnplace.problem.constraints.constraints import (
        read_constraints as read_constraints,
    )

__getattr__, __dir__ = lazy_names(__name__)
