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
    from gnnplace.costs.collectives import collective as collective
    from gnnplace.costs.collectives import gradient_seconds as gradient_seconds
    from gnnplace.costs.collectives import hops as hops
    from gnnplace.costs.collectives import ring_seconds as ring_seconds
    from gnnplace.costs.collectives import share as share
    from gnnplace.costs.floors import EAGER as EAGER
    from gnnplace.costs.floors import NO_FLOOR as NO_FLOOR
    from gnnplace.costs.floors import Floor as Floor
    from gnnplace.costs.frameworks.constants import (
        DEFAULT_FRAMEWORK as DEFAULT_FRAMEWORK,
    )
    from gnnplace.costs.frameworks.constants import Constant as Constant
    from gnnplace.costs.frameworks.constants import ConstantSet as ConstantSet
    from gnnplace.costs.frameworks.constants import assumed as assumed
    from gnnplace.costs.frameworks.constants import environment as environment
    from gnnplace.costs.frameworks.constants import framework as framework
    from gnnplace.costs.frameworks.constants import hardware as hardware
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
    from gnnplace.costs.frameworks.framework import describe_tests as describe_tests
    from gnnplace.costs.frameworks.framework import exposed_seconds as exposed_seconds
    from gnnplace.costs.frameworks.framework import (
        list_untested_properties as list_untested_properties,
    )
    from gnnplace.costs.frameworks.framework import replicas_share as replicas_share
    from gnnplace.costs.frameworks.framework import (
        running_framework as running_framework,
    )
    from gnnplace.costs.frameworks.offloading import NOTHING as NOTHING
    from gnnplace.costs.frameworks.offloading import PATTERN as PATTERN
    from gnnplace.costs.frameworks.offloading import beyond as beyond
    from gnnplace.costs.frameworks.offloading import (
        parse_offloading as parse_offloading,
    )
    from gnnplace.costs.frameworks.variants import IdleNetwork as IdleNetwork
    from gnnplace.costs.frameworks.variants import with_host as with_host
    from gnnplace.costs.frameworks.variants import with_network as with_network
    from gnnplace.costs.frameworks.variants import with_slow_links as with_slow_links
    from gnnplace.costs.frameworks.variants import without_messages as without_messages
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
    from gnnplace.costs.optimizers import newton_schulz_shapes as newton_schulz_shapes
    from gnnplace.costs.optimizers import optimizer_kind as optimizer_kind
    from gnnplace.costs.own import with_measurements as with_measurements
    from gnnplace.costs.prediction import predict_in_step as predict_in_step
    from gnnplace.costs.profiling.cache import measured_anew as measured_anew
    from gnnplace.costs.profiling.cache import program_digest as program_digest
    from gnnplace.costs.profiling.description import PASSES as PASSES
    from gnnplace.costs.profiling.description import Description as Description
    from gnnplace.costs.profiling.description import Kernel as Kernel
    from gnnplace.costs.profiling.description import describe as describe
    from gnnplace.costs.profiling.description import rows_of as rows_of
    from gnnplace.costs.profiling.description import vector as vector
    from gnnplace.costs.profiling.estimation import estimate_ops as estimate_ops
    from gnnplace.costs.profiling.grouping import Units as Units
    from gnnplace.costs.profiling.grouping import find_units as find_units
    from gnnplace.costs.profiling.grouping import group_graph as group_graph
    from gnnplace.costs.profiling.profiler import Progress as Progress
    from gnnplace.costs.profiling.profiler import any_local as any_local
    from gnnplace.costs.profiling.profiler import capture_for as capture_for
    from gnnplace.costs.profiling.profiler import estimated_problem as estimated_problem
    from gnnplace.costs.profiling.profiler import group_ops as group_ops
    from gnnplace.costs.profiling.profiler import local_device as local_device
    from gnnplace.costs.profiling.profiler import profile as profile
    from gnnplace.costs.profiling.profiler import profile_model as profile_model
    from gnnplace.costs.profiling.profiler import read_or_profile as read_or_profile
    from gnnplace.costs.profiling.targets import detect as detect
    from gnnplace.costs.profiling.targets import is_problem_file as is_problem_file
    from gnnplace.costs.profiling.targets import on_cluster as on_cluster
    from gnnplace.costs.profiling.targets import read_on_cluster as read_on_cluster
    from gnnplace.costs.profiling.targets import resolve_cluster as resolve_cluster
    from gnnplace.costs.rows import joined as joined
    from gnnplace.costs.tables import CostTables as CostTables
    from gnnplace.costs.tables import load_shipped_tables as load_shipped_tables

__getattr__, __dir__ = lazy_names(__name__)
