"""Roles from axes that a user names, and what names and shapes must fit."""

import pytest

from depthmup_flax import Axes, InputError, Role
from depthmup_flax.auditing.overrides import info_of_axes, overridden


def info(names, shape, base_shape, *, is_readout=True, **fields):
    axes = Axes(names, **{"in_branch": False, "depth_ratio": 1.0, **fields})
    return info_of_axes("w", axes, shape, base_shape, is_readout=is_readout)


@pytest.mark.parametrize(
    ("names", "shape", "base_shape", "role", "ratios", "decay"),
    [
        (("fixed_in", "width_out"), (5, 32), (5, 16), Role.INPUT, (1, 2), True),
        (("width_in", "width_out"), (64, 32), (16, 16), Role.HIDDEN, (4, 2), True),
        (("width_in", "fixed_out"), (32, 3), (16, 3), Role.OUTPUT, (2, 1), True),
        (("vocab_in", "fixed_out"), (7, 3), (7, 3), Role.FIXED, (1, 1), False),
        (("width_out",), (32,), (16,), Role.VECTOR, (1, 2), False),
        (("layers", "width_in"), (4, 32), (4, 16), Role.VECTOR, (1, 2), False),
        ((None, None, "width_in", "width_out"), (3, 3, 32, 32), (3, 3, 16, 16), Role.HIDDEN, (2, 2), True),
        (("experts", "width_in", "inner_out"), (4, 32, 64), (4, 16, 32), Role.HIDDEN, (2, 2), True),
        # Heads grow, their size does not.
        (("width_in", "width_out", None), (32, 4, 8), (16, 2, 8), Role.HIDDEN, (2, 2), True),
    ],
)
def test_named_axes_give_the_role_the_ratios_and_the_decay(names, shape, base_shape, role, ratios, decay):
    leaf = info(names, shape, base_shape)
    assert (leaf.role, (leaf.width_in, leaf.width_out), leaf.decay) == (role, ratios, decay)


@pytest.mark.parametrize(
    ("names", "in_axes", "out_axes"),
    [
        (("width_in", "width_out"), (0,), (1,)),
        ((None, "width_in", "width_out", None), (0, 1), (2, 3)),  # a window in front, heads behind
        (("layers", "width_in", "width_out"), (1,), (2,)),
        (("width_in", "fixed_out", "width_out"), (0,), (1, 2)),
        (("width_in", None, "width_out"), (), ()),  # an unnamed one in between may be of either side
    ],
)
def test_named_axes_are_sides_of_a_matrix(names, in_axes, out_axes):
    shape = [32 if name in ("width_in", "width_out") else 3 for name in names]
    base_shape = [16 if name in ("width_in", "width_out") else 3 for name in names]
    leaf = info(names, tuple(shape), tuple(base_shape))
    assert (leaf.in_axes, leaf.out_axes) == (in_axes, out_axes)


def test_later_overrides_win_and_a_parameter_outside_of_branches_has_no_depth_ratio():
    traced = Axes(in_branch=True, depth_ratio=4.0)
    overrides = {"stem": Axes(decay=False), "block_*": Axes(decay=True), "block_1/*": Axes(in_branch=False)}
    assert overridden("stem/kernel", traced, overrides) == Axes(in_branch=True, depth_ratio=4.0, decay=False)
    assert overridden("block_0/kernel", traced, overrides) == Axes(in_branch=True, depth_ratio=4.0, decay=True)
    assert overridden("block_1/kernel", traced, overrides) == Axes(in_branch=False, depth_ratio=1.0, decay=True)
    assert overridden("head", traced, overrides) == traced


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: Axes("width_in"), ("axes is 'width_in'", "a tuple")),
        (lambda: Axes(("width",)), ("axis name 'width' is unknown", "'width_in'")),
        (lambda: Axes(("width_in", "layers")), ("'layers' at 1", "comes first")),
        (lambda: info(("width_in",), (32, 32), (16, 16)), ("name 1 dimensions", "one of")),
        (lambda: info(("fixed_in", "width_out"), (6, 32), (5, 16)), ("size 6 along 'fixed_in'", "5", "does not grow")),
        (
            lambda: info(("width_in", "fixed_out"), (32, 3), (16, 3), is_readout=False),
            ("'w' is a readout", "width_ratio=m"),
        ),
        (lambda: info(("width_in", "fixed_out"), (32, 3), (16, 3), width_ratio=4.0), ("width_ratio 4", "2 times")),
        (lambda: info(("width_in", "fixed_out"), (16, 3), (32, 3), width_ratio=1.0), ("0.5 times", "swapped")),
    ],
)
def test_names_that_do_not_fit_end_in_one_sentence(call, parts):
    with pytest.raises(InputError) as error:
        call()
    assert all(part in str(error.value) for part in parts), error.value
