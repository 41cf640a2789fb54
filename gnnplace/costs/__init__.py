"""Seconds and bytes of ops, messages and steps: looked up here, measured in ``profiling``."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.costs.collectives import ALL_GATHER as ALL_GATHER
    from gnnplace.costs.collectives import ALL_REDUCE as ALL_REDUCE
    from gnnplace.costs.collectives import ALL_TO_ALL as ALL_TO_ALL
    from gnnplace.costs.collectives import BUCKET as BUCKET
    from gnnplace.costs.collectives import REDUCE_SCATTER as REDUCE_SCATTER
    from gnnplace.costs.collectives import Exchange as Exchange
    from gnnplace.costs.collectives import Group as Group
    from gnnplace.costs.collectives import (
        compute_gradient_seconds as compute_gradient_seconds,
    )
    from gnnplace.costs.collectives import compute_ring_seconds as compute_ring_seconds
    from gnnplace.costs.collectives import count_hops as count_hops
    from gnnplace.costs.collectives import estimate_collective as estimate_collective
    from gnnplace.costs.collectives import share as share
    from gnnplace.costs.floors import EAGER as EAGER
    from gnnplace.costs.floors import NO_FLOOR as NO_FLOOR
    from gnnplace.costs.floors import Floor as Floor
    from gnnplace.costs.frameworks.constants import (
        DEFAULT_FRAMEWORK as DEFAULT_FRAMEWORK,
    )
    from gnnplace.costs.frameworks.constants import Constant as Constant
    from gnnplace.costs.frameworks.constants import ConstantSet as ConstantSet
    from gnnplace.costs.frameworks.constants import (
        iterate_constants as iterate_constants,
    )
    from gnnplace.costs.frameworks.constants import (
        load_environment_constants as load_environment_constants,
    )
    from gnnplace.costs.frameworks.constants import (
        load_framework_constants as load_framework_constants,
    )
    from gnnplace.costs.frameworks.constants import (
        load_hardware_constants as load_hardware_constants,
    )
    from gnnplace.costs.frameworks.framework import GIBIBYTE as GIBIBYTE
    from gnnplace.costs.frameworks.framework import HIDDEN as HIDDEN
    from gnnplace.costs.frameworks.framework import HIDES_NOTHING as HIDES_NOTHING
    from gnnplace.costs.frameworks.framework import HIDES_REDUCE as HIDES_REDUCE
    from gnnplace.costs.frameworks.framework import NO_EXCHANGES as NO_EXCHANGES
    from gnnplace.costs.frameworks.framework import TRAITS as TRAITS
    from gnnplace.costs.frameworks.framework import Framework as Framework
    from gnnplace.costs.frameworks.framework import ReplicaExchanges as ReplicaExchanges
    from gnnplace.costs.frameworks.framework import ReplicaGroup as ReplicaGroup
    from gnnplace.costs.frameworks.framework import (
        ReplicatedParameters as ReplicatedParameters,
    )
    from gnnplace.costs.frameworks.framework import RunningWords as RunningWords
    from gnnplace.costs.frameworks.framework import Seconds as Seconds
    from gnnplace.costs.frameworks.framework import (
        compute_exposed_seconds as compute_exposed_seconds,
    )
    from gnnplace.costs.frameworks.framework import describe_tests as describe_tests
    from gnnplace.costs.frameworks.framework import (
        get_hidden_replica_share as get_hidden_replica_share,
    )
    from gnnplace.costs.frameworks.framework import (
        list_untested_properties as list_untested_properties,
    )
    from gnnplace.costs.frameworks.framework import (
        make_running_framework as make_running_framework,
    )
    from gnnplace.costs.frameworks.offloading import NOTHING as NOTHING
    from gnnplace.costs.frameworks.offloading import PATTERN as PATTERN
    from gnnplace.costs.frameworks.offloading import (
        compute_uncovered_seconds as compute_uncovered_seconds,
    )
    from gnnplace.costs.frameworks.offloading import (
        parse_offloading as parse_offloading,
    )
    from gnnplace.costs.kernels import GPUS as GPUS
    from gnnplace.costs.kernels import PRODUCTS as PRODUCTS
    from gnnplace.costs.kernels import Kernels as Kernels
    from gnnplace.costs.kernels import Shape as Shape
    from gnnplace.costs.kernels import find_kernels as find_kernels
    from gnnplace.costs.kernels import has_step_constants as has_step_constants
    from gnnplace.costs.links import LinkTable as LinkTable
    from gnnplace.costs.links import load_shipped_links as load_shipped_links
    from gnnplace.costs.links import price_message as price_message
    from gnnplace.costs.memory import PARAMETER as PARAMETER
    from gnnplace.costs.memory import StateTerms as StateTerms
    from gnnplace.costs.memory import state_terms as state_terms
    from gnnplace.costs.network import ServerNetwork as ServerNetwork
    from gnnplace.costs.network import get_network as get_network
    from gnnplace.costs.optimizers import CAPTURED_OPTIMIZERS as CAPTURED_OPTIMIZERS
    from gnnplace.costs.optimizers import OPTIMIZERS as OPTIMIZERS
    from gnnplace.costs.optimizers import OptimizerKind as OptimizerKind
    from gnnplace.costs.optimizers import get_optimizer_kind as get_optimizer_kind
    from gnnplace.costs.optimizers import (
        list_newton_schulz_products as list_newton_schulz_products,
    )
    from gnnplace.costs.own import with_measurements as with_measurements
    from gnnplace.costs.prediction import predict_in_step as predict_in_step
    from gnnplace.costs.profiling.cache import measure_anew as measure_anew
    from gnnplace.costs.profiling.cache import program_digest as program_digest
    from gnnplace.costs.profiling.description import PASSES as PASSES
    from gnnplace.costs.profiling.description import Description as Description
    from gnnplace.costs.profiling.description import Kernel as Kernel
    from gnnplace.costs.profiling.description import describe as describe
    from gnnplace.costs.profiling.description import make_rows as make_rows
    from gnnplace.costs.profiling.description import (
        make_vector_kernel as make_vector_kernel,
    )
    from gnnplace.costs.profiling.estimation import estimate_ops as estimate_ops
    from gnnplace.costs.profiling.grouping import Units as Units
    from gnnplace.costs.profiling.grouping import find_units as find_units
    from gnnplace.costs.profiling.grouping import group_graph as group_graph
    from gnnplace.costs.profiling.profiler import Progress as Progress
    from gnnplace.costs.profiling.profiler import capture_for as capture_for
    from gnnplace.costs.profiling.profiler import find_local_device as find_local_device
    from gnnplace.costs.profiling.profiler import group_ops as group_ops
    from gnnplace.costs.profiling.profiler import has_local_device as has_local_device
    from gnnplace.costs.profiling.profiler import (
        make_estimated_problem as make_estimated_problem,
    )
    from gnnplace.costs.profiling.profiler import profile as profile
    from gnnplace.costs.profiling.profiler import profile_model as profile_model
    from gnnplace.costs.profiling.profiler import read_or_profile as read_or_profile
    from gnnplace.costs.profiling.targets import detect as detect
    from gnnplace.costs.profiling.targets import is_problem_file as is_problem_file
    from gnnplace.costs.profiling.targets import move_to_cluster as move_to_cluster
    from gnnplace.costs.profiling.targets import read_on_cluster as read_on_cluster
    from gnnplace.costs.profiling.targets import resolve_cluster as resolve_cluster
    from gnnplace.costs.rows import join_rows as join_rows
    from gnnplace.costs.tables import CostTables as CostTables
    from gnnplace.costs.tables import load_shipped_tables as load_shipped_tables

__getattr__, __dir__ = lazy_names(__name__)
