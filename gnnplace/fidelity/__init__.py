"""How well steps are predicted: agreement, calibration, residuals; arithmetic on samples."""
