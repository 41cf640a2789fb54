"""The train room: training of the policy and the networks.

What is offered here is imported when first used: ``train.data`` needs no Lightning.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.train.cli import main as main
    from gnnplace.train.data.build import build_data as build_data
    from gnnplace.train.data.captured import CapturedDraws as CapturedDraws
    from gnnplace.train.data.captured import (
        draw_captured_problem as draw_captured_problem,
    )
    from gnnplace.train.data.captured import open_shipped_store as open_shipped_store
    from gnnplace.train.data.captured import read_model_list as read_model_list
    from gnnplace.train.data.captured_graph import CapturedGraph as CapturedGraph
    from gnnplace.train.data.collected import collect_data as collect_data
    from gnnplace.train.data.collected import how_to_collect as how_to_collect
    from gnnplace.train.data.datasets import SHIPPED_FOLDERS as SHIPPED_FOLDERS
    from gnnplace.train.data.datasets import dataset_problem as dataset_problem
    from gnnplace.train.data.datasets import find_dataset as find_dataset
    from gnnplace.train.data.datasets import verify as verify
    from gnnplace.train.data.random_clusters import CLUSTERS as CLUSTERS
    from gnnplace.train.data.random_families import MOST_OPS as MOST_OPS
    from gnnplace.train.data.random_families import RandomDraws as RandomDraws
    from gnnplace.train.data.random_families import random_problem as random_problem
    from gnnplace.train.data.recipes import RECIPES as RECIPES
    from gnnplace.train.data.recipes import STORE as STORE
    from gnnplace.train.data_module import ProblemDataModule as ProblemDataModule
    from gnnplace.train.evolution import Evolution as Evolution
    from gnnplace.train.measured import MeasuredTuning as MeasuredTuning
    from gnnplace.train.measured import Rounds as Rounds
    from gnnplace.train.measured_reinforce import MeasuredReinforce as MeasuredReinforce
    from gnnplace.train.one_problem import OneProblem as OneProblem
    from gnnplace.train.one_problem import ProblemFiles as ProblemFiles
    from gnnplace.train.reinforce import Reinforce as Reinforce

__getattr__, __dir__ = lazy_names(__name__)
