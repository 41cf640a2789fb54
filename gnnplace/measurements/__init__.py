"""The measurements room: an append-only store of measured steps, and what it teaches."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.measurements.records import Outcome as Outcome
    from gnnplace.measurements.records import RunRecord as RunRecord
    from gnnplace.measurements.records import StepRecord as StepRecord
    from gnnplace.measurements.records import StoredRun as StoredRun
    from gnnplace.measurements.records import is_disturbed as is_disturbed
    from gnnplace.measurements.store import MeasurementStore as MeasurementStore
    from gnnplace.measurements.store import Selection as Selection
    from gnnplace.measurements.store import open_store as open_store
    from gnnplace.measurements.store import store_url as store_url

__getattr__, __dir__ = lazy_names(__name__)
