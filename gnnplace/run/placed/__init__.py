"""A placement run on workers: a program as one source a device, with messages and clocks.

A run goes through this package from the top: `execute` checks the placement (`check_runnable`),
`plan_execution` makes the program an `ExecutionPlan` (segments and messages of every device),
`device_program` writes each device's source, and a `DeviceWorker` runs it within a `RunSetting`
(board, transport, clocks, cores). An `Execution` has timings, values and memory of every step.
`read_unbound_placement` gives a placement's problem from its file, by its structure alone.

`training`, `checking` and `measuring` call it. It compares no numbers with anything, keeps nothing
in the store of measurements, and never searches a placement.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.placed.clock import StepClock as StepClock
    from gnnplace.run.placed.clock import step_timing as step_timing
    from gnnplace.run.placed.executor import check_possible as check_possible
    from gnnplace.run.placed.executor import check_runnable as check_runnable
    from gnnplace.run.placed.executor import execute as execute
    from gnnplace.run.placed.executor import with_sequences as with_sequences
    from gnnplace.run.placed.options import AUTO as AUTO
    from gnnplace.run.placed.options import ExecutionOptions as ExecutionOptions
    from gnnplace.run.placed.options import RecordOptions as RecordOptions
    from gnnplace.run.placed.plan import ExecutionPlan as ExecutionPlan
    from gnnplace.run.placed.plan import plan_execution as plan_execution
    from gnnplace.run.placed.result import STATEFUL as STATEFUL
    from gnnplace.run.placed.result import Execution as Execution
    from gnnplace.run.placed.result import OpTiming as OpTiming
    from gnnplace.run.placed.result import SavedValues as SavedValues
    from gnnplace.run.placed.result import StepTiming as StepTiming
    from gnnplace.run.placed.result import StepValues as StepValues
    from gnnplace.run.placed.result import TransferTiming as TransferTiming
    from gnnplace.run.placed.result import WorkerMemory as WorkerMemory
    from gnnplace.run.placed.result import list_computed_values as list_computed_values
    from gnnplace.run.placed.result import state_values as state_values
    from gnnplace.run.placed.setting import RunSetting as RunSetting
    from gnnplace.run.placed.setting import adapt_to_devices as adapt_to_devices
    from gnnplace.run.placed.setting import execution_mode as execution_mode
    from gnnplace.run.placed.source import TICKS as TICKS
    from gnnplace.run.placed.source import StepFunction as StepFunction
    from gnnplace.run.placed.source import device_program as device_program
    from gnnplace.run.placed.structure import UnboundPlacement as UnboundPlacement
    from gnnplace.run.placed.structure import (
        read_unbound_placement as read_unbound_placement,
    )
    from gnnplace.run.placed.worker import DeviceClock as DeviceClock
    from gnnplace.run.placed.worker import DeviceWorker as DeviceWorker
    from gnnplace.run.placed.worker import Records as Records
    from gnnplace.run.placed.worker import device_clock as device_clock

__getattr__, __dir__ = lazy_names(__name__)
