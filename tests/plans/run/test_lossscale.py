from gnnplace.plans.run.lossscale import PATIENCE, START, scale_for


def test_the_factor_halves_on_overflow_and_doubles_after_patience():
    scale = scale_for("16-mixed")
    scale.update(False)
    assert scale.factor == START / 2
    for _ in range(PATIENCE):
        scale.update(True)
    assert scale.factor == START
    scale.update(True)
    assert scale.factor == START
    for _ in range(40):
        scale.update(False)
    assert scale.factor == 1.0


def test_half_parameters_hold_no_larger_factor_and_others_need_none():
    scale = scale_for("16-master")
    for _ in range(PATIENCE):
        scale.update(True)
    assert scale.factor == START
    assert scale_for("bf16-mixed") is None
