import jax.numpy as jnp
import pytest

from depthmup_flax.networks.calls import calling
from depthmup_flax.util.errors import InputError, UserCodeError


def test_an_error_says_which_function_was_called_with_what_shapes():
    cause = ValueError("no such axis")
    with (
        pytest.raises(
            UserCodeError, match=r"net:Net.__call__\(float32\[64, 8\], int32\[2\]\).*ValueError: no such"
        ) as raised,
        calling("net:Net.__call__", jnp.zeros((64, 8)), {"labels": jnp.arange(2)}),
    ):
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
