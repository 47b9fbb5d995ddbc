"""Rotations of queries and keys, against complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup_flax.nn.positions import rotary_angles, rotated

Q, K = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))


def test_a_rotation_multiplies_pairs_of_features_by_complex_numbers():
    """Su et al. (arXiv:2104.09864): feature i is the real part, feature i + D/2 the imaginary one."""
    x = np.asarray(jax.random.normal(jax.random.key(1), (2, 5, 3, 8)))
    turned = np.asarray(rotated(jnp.asarray(x), (5,), 5))
    for position in range(5):
        for i in range(4):
            angle = position / 10_000 ** (i / 4)
            expected = (x[:, position, :, i] + 1j * x[:, position, :, i + 4]) * np.exp(1j * angle)
            np.testing.assert_allclose(turned[:, position, :, i], expected.real, atol=1e-5)
            np.testing.assert_allclose(turned[:, position, :, i + 4], expected.imag, atol=1e-5)


@pytest.mark.parametrize("grid", [(12,), (3, 4)])
def test_products_of_a_query_and_a_key_depend_on_the_difference_of_their_positions_alone(grid):
    tokens = np.prod(grid) + 1  # one before the grid
    q, k = (np.asarray(rotated(jnp.broadcast_to(x, (1, tokens, 1, 8)), grid, tokens))[0, :, 0] for x in (Q, K))
    products = q @ k.T
    np.testing.assert_allclose(products[0, 0], float(jnp.vdot(Q, K)), rtol=1e-5)  # which is not turned
    places = [tuple(place) for place in np.indices(grid).reshape(len(grid), -1).T]
    of_difference = {}
    for i, a in enumerate(places):
        for j, b in enumerate(places):
            difference = tuple(int(m - n) for m, n in zip(a, b, strict=True))
            of_difference.setdefault(difference, []).append(products[1 + i, 1 + j])
    assert max(np.ptp(values) for values in of_difference.values()) < 1e-4
    assert np.std([values[0] for values in of_difference.values()]) > 0.1


def test_angles_of_a_grid_are_those_of_its_rows_and_columns():
    angles = rotary_angles((3, 5), 16)
    assert angles.shape == (15, 8)
    np.testing.assert_array_equal(angles[7], [*rotary_angles((3,), 8)[1], *rotary_angles((5,), 8)[2]])


def test_bfloat16_queries_are_turned_in_float32():
    x = jnp.broadcast_to(Q, (1, 300, 1, 8)).astype(jnp.bfloat16)
    exact = rotated(x.astype(jnp.float32), (300,), 300)
    turned = rotated(x, (300,), 300)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_array_equal(turned, exact.astype(jnp.bfloat16))
