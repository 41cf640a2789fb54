"""Questions about an answer: what bounds the step, why devices idle, what else would cost."""
