"""The measurements room: an append-only store of measured steps, and what it teaches."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.measurements.calibration import Calibrated as Calibrated
    from gnnplace.measurements.calibration import Calibration as Calibration
    from gnnplace.measurements.calibration import Forward as Forward
    from gnnplace.measurements.calibration import apply_calibration as apply_calibration
    from gnnplace.measurements.calibration import calibrate as calibrate
    from gnnplace.measurements.calibration import (
        calibrate_cluster as calibrate_cluster,
    )
    from gnnplace.measurements.calibration import cross_validated as cross_validated
    from gnnplace.measurements.calibration import fit as fit
    from gnnplace.measurements.calibration import mean_overlap as mean_overlap
    from gnnplace.measurements.calibration import read_calibration as read_calibration
    from gnnplace.measurements.calibration import write_calibration as write_calibration
    from gnnplace.measurements.fidelity import FidelityRow as FidelityRow
    from gnnplace.measurements.fidelity import Study as Study
    from gnnplace.measurements.fidelity import link_residuals as link_residuals
    from gnnplace.measurements.fidelity import op_residuals as op_residuals
    from gnnplace.measurements.objective import Measured as Measured
    from gnnplace.measurements.objective import StepObjective as StepObjective
    from gnnplace.measurements.posterior import NOISE as NOISE
    from gnnplace.measurements.posterior import Posterior as Posterior
    from gnnplace.measurements.posterior import distance as distance
    from gnnplace.measurements.records import FAILED as FAILED
    from gnnplace.measurements.records import INTERRUPTED as INTERRUPTED
    from gnnplace.measurements.records import OK as OK
    from gnnplace.measurements.records import Outcome as Outcome
    from gnnplace.measurements.records import RunRecord as RunRecord
    from gnnplace.measurements.records import StepRecord as StepRecord
    from gnnplace.measurements.records import StoredRun as StoredRun
    from gnnplace.measurements.records import is_disturbed as is_disturbed
    from gnnplace.measurements.samples import CLOCKS as CLOCKS
    from gnnplace.measurements.samples import FEWEST as FEWEST
    from gnnplace.measurements.samples import VIRTUAL as VIRTUAL
    from gnnplace.measurements.samples import WALL as WALL
    from gnnplace.measurements.samples import Agreement as Agreement
    from gnnplace.measurements.samples import Sample as Sample
    from gnnplace.measurements.samples import agreement as agreement
    from gnnplace.measurements.samples import ceiling as ceiling
    from gnnplace.measurements.samples import find_fastest as find_fastest
    from gnnplace.measurements.samples import halves as halves
    from gnnplace.measurements.samples import read_samples as read_samples
    from gnnplace.measurements.samples import settle_step_times as settle_step_times
    from gnnplace.measurements.samples import shortest as shortest
    from gnnplace.measurements.samples import summarize_steps as summarize_steps
    from gnnplace.measurements.store import MeasurementStore as MeasurementStore
    from gnnplace.measurements.store import Selection as Selection
    from gnnplace.measurements.store import open_store as open_store
    from gnnplace.measurements.store import store_url as store_url

__getattr__, __dir__ = lazy_names(__name__)
