"""The execution room: placed programs run on workers, measured and verified."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.execution.eager import eager_step_time as eager_step_time
    from gnnplace.execution.executor import execute as execute
    from gnnplace.execution.objective import Measured as Measured
    from gnnplace.execution.objective import MeasuredObjective as MeasuredObjective
    from gnnplace.execution.options import ExecutionOptions as ExecutionOptions
    from gnnplace.execution.options import RecordOptions as RecordOptions
    from gnnplace.execution.result import Execution as Execution
    from gnnplace.execution.result import OpTiming as OpTiming
    from gnnplace.execution.result import StepTiming as StepTiming
    from gnnplace.execution.result import StepValues as StepValues
    from gnnplace.execution.result import TransferTiming as TransferTiming
    from gnnplace.execution.result import WorkerMemory as WorkerMemory
    from gnnplace.execution.training.training_step import TrainingStep as TrainingStep
    from gnnplace.execution.training.training_step import compile as compile
    from gnnplace.execution.verification import reference_step as reference_step
    from gnnplace.execution.verification import verify as verify
    from gnnplace.runtime.comparison import Difference as Difference
    from gnnplace.runtime.comparison import Verification as Verification

__getattr__, __dir__ = lazy_names(__name__)
