"""A callback on the host is known by its code, or by the version that it states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup_flax as dm
from depthmup_flax.util.errors import UserCodeError
from depthmup_flax.util.program_digest import calls_host, digest, stated_version


def program(factor, version=None):
    def on_host(x):
        return np.float32(factor) * x

    if version is not None:
        on_host.fingerprint = lambda: version
    return program_of(on_host)


def program_of(on_host):
    x = jnp.ones(3)
    return jax.make_jaxpr(lambda x: jax.pure_callback(on_host, x, x))(x)


@pytest.mark.parametrize("version", [None, "version 1"])
def test_only_a_callback_without_a_version_is_not_shown(version):
    assert calls_host(program(2, version)) == (version is None)


def test_a_version_stands_for_the_code():
    assert digest(program(2, "version 1")) == digest(program(3, "version 1"))
    assert digest(program(2, "version 1")) != digest(program(2, "version 2"))
    assert digest(program(2)) != digest(program(3))


def test_the_same_version_of_another_function_is_another_program():
    def other(x):
        return np.float32(2) * x

    other.fingerprint = lambda: "version 1"
    assert digest(program(2, "version 1")) != digest(program_of(other))


def test_a_version_that_is_none_is_refused_and_a_classes_method_is_no_version():
    class Source:
        def fingerprint(self):
            return None

    with pytest.raises(dm.InputError, match="return a version"):
        stated_version(Source())
    assert stated_version(Source) is None


@pytest.mark.parametrize("read", [stated_version, lambda source: digest(program_of(source))])
def test_a_version_that_fails_is_an_error_of_the_users_code(read):
    def source(x):
        return x

    source.fingerprint = lambda: [][0]
    with pytest.raises(UserCodeError, match="fingerprint"):
        read(source)
