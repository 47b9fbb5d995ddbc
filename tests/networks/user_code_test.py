import dataclasses
import functools

import equinox as eqx
import flax.linen as nn
import jax.numpy as jnp
import pytest
from flax import nnx

from depthmup_flax.networks.user_code import MISSING, calling, model_fields, takes
from depthmup_flax.util.errors import InputError, UserCodeError


def test_an_error_says_which_function_was_called_with_what_shapes():
    cause = ValueError("no such axis")
    says = pytest.raises(UserCodeError, match=r"net:Net.__call__\(float32\[64, 8\], int32\[2\]\).*ValueError: no such")
    with says as raised, calling("net:Net.__call__", jnp.zeros((64, 8)), {"labels": jnp.arange(2)}):
        raise cause
    assert raised.value.__cause__ is cause


def test_a_tree_of_many_arrays_is_counted_and_others_are_shown():
    shown = pytest.raises(UserCodeError, match=r"^f\(40 arrays, float32\[2\]\) failed")
    with shown, calling("f", [jnp.zeros(1)] * 40, jnp.zeros(2)):
        raise KeyError


@pytest.mark.parametrize("error", [InputError("depth is 0"), UserCodeError("inner"), KeyboardInterrupt()])
def test_what_is_no_error_of_the_function_passes(error):
    with pytest.raises(type(error)) as raised, calling("f"):
        raise error
    assert raised.value is error


class LinenNet(nn.Module):
    width: int
    depth: int = 4
    sizes: list[int] = dataclasses.field(default_factory=lambda: [1, 2])


class NnxNet(nnx.Module):
    def __init__(self, width, depth=4, *, rngs):
        pass


class EqxNet(eqx.Module):
    layers: list
    depth: int = 4

    def __init__(self, width, depth=4, *, key):
        pass


class EqxFields(eqx.Module):
    width: int
    depth: int = 4


def function(width, depth=4, *args, num_classes, rule=None, **more):
    pass


@pytest.mark.parametrize("net", [LinenNet, NnxNet, EqxNet, EqxFields, function], ids=lambda net: net.__name__)
def test_the_fields_are_what_the_user_sets(net):
    assert model_fields(net) == {"width": MISSING, "depth": 4} | ({"sizes": [1, 2]} if net is LinenNet else {})


def test_what_we_pass_is_seen():
    assert takes(NnxNet, "rngs")
    assert takes(EqxNet, "key")
    assert takes(function, "rule")
    assert not takes(function, "more")
    assert not takes(LinenNet, "rngs")


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InputError, match=r"int.*class or a function"):
        model_fields(3)


def test_a_partial_class_has_the_fields_that_are_left_and_a_class_without_init_none():
    assert model_fields(type("Net", (), {})) == {}
    assert model_fields(functools.partial(NnxNet, 64)) == {"depth": 4}
    assert model_fields(functools.partial(function, depth=8)) == {"width": MISSING, "depth": 8}
    assert model_fields(functools.partial(NnxNet, depth=8)) == {"width": MISSING, "depth": 8}
    assert takes(functools.partial(NnxNet, 64), "rngs")
