"""Rules of operations: how each axis of a call's tensors may be split.

Every axis has a label, as in einsum notation (`Rule`); axes of one label are split together. One
family of operations has one file, and `find_rules` finds the rules of all calls of a graph. The
text of labels (`base_label`, `list_labels`) needs no torch.

Sharding and plans split layers by these rules; `gnnplace.tracing.batch` follows the batch by them.
Rules never see the machine or the mesh.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.rules.elementwise import elementwise_rule as elementwise_rule
    from gnnplace.tracing.rules.experts import DISPATCH as DISPATCH
    from gnnplace.tracing.rules.experts import EXPERTS as EXPERTS
    from gnnplace.tracing.rules.experts import SPREAD as SPREAD
    from gnnplace.tracing.rules.labels import Axes as Axes
    from gnnplace.tracing.rules.labels import Exchanged as Exchanged
    from gnnplace.tracing.rules.labels import base_label as base_label
    from gnnplace.tracing.rules.labels import count_groups as count_groups
    from gnnplace.tracing.rules.labels import first_label as first_label
    from gnnplace.tracing.rules.labels import list_labels as list_labels
    from gnnplace.tracing.rules.norms import make_example_rule as make_example_rule
    from gnnplace.tracing.rules.registry import RULES as RULES
    from gnnplace.tracing.rules.registry import changes_in_place as changes_in_place
    from gnnplace.tracing.rules.registry import find_rule as find_rule
    from gnnplace.tracing.rules.registry import find_rules as find_rules
    from gnnplace.tracing.rules.rule import ROWS as ROWS
    from gnnplace.tracing.rules.rule import WHOLE as WHOLE
    from gnnplace.tracing.rules.rule import Case as Case
    from gnnplace.tracing.rules.rule import Rule as Rule
    from gnnplace.tracing.rules.rule import Share as Share
    from gnnplace.tracing.rules.rule import local_shape as local_shape
    from gnnplace.tracing.rules.shapes import SHAPE as SHAPE

__getattr__, __dir__ = lazy_names(__name__)
