"""What is to be placed: a computation graph, what its ops cost, and the cluster; and its file."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.problem.cluster import Cluster as Cluster
    from gnnplace.problem.cluster import Device as Device
    from gnnplace.problem.cluster import Link as Link
    from gnnplace.problem.cluster import link_all_pairs as link_all_pairs
    from gnnplace.problem.cluster import list_device_counts as list_device_counts
    from gnnplace.problem.cluster import load_cluster as load_cluster
    from gnnplace.problem.cluster import preset_names as preset_names
    from gnnplace.problem.cluster import write_cluster as write_cluster
    from gnnplace.problem.cluster.cluster import FABRICS as FABRICS
    from gnnplace.problem.cluster.cluster import OWN_BETWEEN as OWN_BETWEEN
    from gnnplace.problem.cluster.cluster import OWN_INSIDE as OWN_INSIDE
    from gnnplace.problem.cluster.cluster import is_between as is_between
    from gnnplace.problem.cluster.gpus import FLOAT32 as FLOAT32
    from gnnplace.problem.cluster.gpus import find_kind as find_kind
    from gnnplace.problem.cluster.gpus import get_figures as get_figures
    from gnnplace.problem.cluster.headroom import read_headroom as read_headroom
    from gnnplace.problem.cluster.headroom import with_slack as with_slack
    from gnnplace.problem.cluster.machine import describe_machine as describe_machine
    from gnnplace.problem.cluster.machine import list_versions as list_versions
    from gnnplace.problem.cluster.machine import package_commit as package_commit
    from gnnplace.problem.cluster.machine import processor_name as processor_name
    from gnnplace.problem.cluster.presets import MEMORY as MEMORY
    from gnnplace.problem.cluster.presets import cluster_from_data as cluster_from_data
    from gnnplace.problem.cluster.presets import cluster_to_data as cluster_to_data
    from gnnplace.problem.cluster.presets import is_preset as is_preset
    from gnnplace.problem.cluster.presets import make_preset as make_preset
    from gnnplace.problem.cluster.servers import ASSUMED_WATTS as ASSUMED_WATTS
    from gnnplace.problem.constraints import Constraints as Constraints
    from gnnplace.problem.constraints import ConstraintWords as ConstraintWords
    from gnnplace.problem.constraints import apply_constraints as apply_constraints
    from gnnplace.problem.constraints import limit_memory as limit_memory
    from gnnplace.problem.constraints import read_constraints as read_constraints
    from gnnplace.problem.constraints.applying import Matched as Matched
    from gnnplace.problem.constraints.applying import Names as Names
    from gnnplace.problem.constraints.applying import Resolved as Resolved
    from gnnplace.problem.constraints.applying import apply_pins as apply_pins
    from gnnplace.problem.constraints.applying import match_devices as match_devices
    from gnnplace.problem.constraints.applying import resolve as resolve
    from gnnplace.problem.constraints.constraints import AUTO as AUTO
    from gnnplace.problem.constraints.constraints import (
        ConstraintRule as ConstraintRule,
    )
    from gnnplace.problem.constraints.constraints import Given as Given
    from gnnplace.problem.constraints.constraints import (
        as_constraints as as_constraints,
    )
    from gnnplace.problem.constraints.constraints import (
        check_headroom as check_headroom,
    )
    from gnnplace.problem.constraints.constraints import (
        cluster_with_headroom as cluster_with_headroom,
    )
    from gnnplace.problem.constraints.constraints import with_headroom as with_headroom
    from gnnplace.problem.constraints.goals import SearchGoal as SearchGoal
    from gnnplace.problem.digests import compute_digest as compute_digest
    from gnnplace.problem.digests import compute_graph_digest as compute_graph_digest
    from gnnplace.problem.digests import prefix_rule_version as prefix_rule_version
    from gnnplace.problem.formats import READERS as READERS
    from gnnplace.problem.formats import convert as convert
    from gnnplace.problem.formats import from_networkx as from_networkx
    from gnnplace.problem.formats import from_pyg as from_pyg
    from gnnplace.problem.formats import to_pyg as to_pyg
    from gnnplace.problem.microbatching import MOST_MICROBATCHES as MOST_MICROBATCHES
    from gnnplace.problem.microbatching import check_microbatches as check_microbatches
    from gnnplace.problem.microbatching import with_microbatches as with_microbatches
    from gnnplace.problem.placement import CLUSTER_KEY as CLUSTER_KEY
    from gnnplace.problem.placement import CONSTRAINTS_KEY as CONSTRAINTS_KEY
    from gnnplace.problem.placement import Placement as Placement
    from gnnplace.problem.placement import (
        count_placed_microbatches as count_placed_microbatches,
    )
    from gnnplace.problem.placement import list_faults as list_faults
    from gnnplace.problem.placement import placement_from_data as placement_from_data
    from gnnplace.problem.placement import placement_to_data as placement_to_data
    from gnnplace.problem.placement import read_placement as read_placement
    from gnnplace.problem.placement import read_placement_for as read_placement_for
    from gnnplace.problem.placement import sequence_from_order as sequence_from_order
    from gnnplace.problem.placement import write_placement as write_placement
    from gnnplace.problem.problem import BACKWARD as BACKWARD
    from gnnplace.problem.problem import FORWARD as FORWARD
    from gnnplace.problem.problem import OPTIONS_KEY as OPTIONS_KEY
    from gnnplace.problem.problem import PHASES as PHASES
    from gnnplace.problem.problem import UPDATE as UPDATE
    from gnnplace.problem.problem import Problem as Problem
    from gnnplace.problem.problem import build_problem as build_problem
    from gnnplace.problem.problem import plain_number as plain_number
    from gnnplace.problem.problem import problem_from_data as problem_from_data
    from gnnplace.problem.problem import problem_to_data as problem_to_data
    from gnnplace.problem.problem import read_problem as read_problem
    from gnnplace.problem.problem import write_problem as write_problem

__getattr__, __dir__ = lazy_names(__name__)
