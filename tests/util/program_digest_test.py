"""A callback on the host is known by its code, or by the version that it states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.util.program_digest import calls_host, digest


def program(factor, version=None):
    def on_host(x):
        return np.float32(factor) * x

    if version is not None:
        on_host.fingerprint = lambda: version
    x = jnp.ones(3)
    return jax.make_jaxpr(lambda x: jax.pure_callback(on_host, x, x))(x)


@pytest.mark.parametrize("version", [None, "version 1"])
def test_only_a_callback_without_a_version_is_not_shown(version):
    assert calls_host(program(2, version)) == (version is None)


def test_a_version_stands_for_the_code():
    assert digest(program(2, "version 1")) == digest(program(3, "version 1"))
    assert digest(program(2, "version 1")) != digest(program(2, "version 2"))
    assert digest(program(2)) != digest(program(3))
