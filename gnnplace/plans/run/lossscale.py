"""The factor on the loss that keeps gradients in half precision from vanishing.

Dynamic loss scaling (Micikevicius et al., 2018, arXiv 1710.03740, section 3.2), with the constants
of `torch.amp.GradScaler`: gradients that are not finite halve the factor and drop the step; so many
steps without one double it. The factor is a power of two, so that it changes no digit.
"""

from __future__ import annotations

from dataclasses import dataclass

START, PATIENCE = 2.0**15, 2000
MOST = {"16-mixed": 2.0**24, "16-master": 2.0**15}
"""By precision; with half parameters the loss is half too, and holds no more."""


@dataclass(eq=False)
class LossScale:
    """Of one training.

    Attributes:
        most: the largest factor.
        factor: of the next step.
        good: steps since it changed.
    """

    most: float
    factor: float = START
    good: int = 0

    def update(self, finite: bool) -> None:
        """After a step whose gradients were finite, or not."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.factor = max(self.factor / 2.0, 1.0)
        elif self.good == PATIENCE:
            self.factor, self.good = min(2.0 * self.factor, self.most), 0


def scale_for(precision: str) -> LossScale | None:
    """The factor that a precision needs; None: none."""
    return LossScale(MOST[precision]) if precision in MOST else None
