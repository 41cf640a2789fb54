"""The train room: how the policy learns. Importing it imports Lightning."""

from gnnplace.train.aim_choice import AimChoice as AimChoice
from gnnplace.train.data import ProblemDataModule as ProblemDataModule
from gnnplace.train.evolution import Evolution as Evolution
from gnnplace.train.measured import MeasuredTuning as MeasuredTuning
from gnnplace.train.measured import Rounds as Rounds
from gnnplace.train.measured_reinforce import MeasuredReinforce as MeasuredReinforce
from gnnplace.train.one_problem import OneProblem as OneProblem
from gnnplace.train.one_problem import ProblemFiles as ProblemFiles
from gnnplace.train.reinforce import Reinforce as Reinforce
