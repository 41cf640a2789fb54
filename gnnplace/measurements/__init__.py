"""The measurements room: an append-only store of measured steps, and what it teaches."""

from gnnplace.measurements.records import Outcome as Outcome
from gnnplace.measurements.records import RunRecord as RunRecord
from gnnplace.measurements.records import StepRecord as StepRecord
from gnnplace.measurements.records import StoredRun as StoredRun
from gnnplace.measurements.store import MeasurementStore as MeasurementStore
from gnnplace.measurements.store import Selection as Selection
from gnnplace.measurements.store import open_store as open_store
from gnnplace.measurements.store import store_url as store_url
