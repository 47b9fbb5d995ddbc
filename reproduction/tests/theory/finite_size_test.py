"""The parts of the distance between finite networks and the limit, recovered from samples with known parts."""

import numpy as np
import pytest

from depthmup_flax.util.errors import InputError
from reproduction.theory import Ensemble, finite_size_error


def test_parts_of_the_error_are_recovered_without_bias():
    """Four networks in an ensemble, many ensembles: variance 0.3, mean off by 0.2, depth off by 0.1."""
    rng = np.random.default_rng(0)
    at_depth, limit = np.array([1.0, 2.0]), np.array([1.1, 1.9])
    outputs = at_depth + 0.2 + np.sqrt(0.3) * rng.normal(size=(4000, 4, 2))
    errors = [finite_size_error(Ensemble.of(four), at_depth, limit) for four in outputs]
    expected = {"variance": 0.3, "mean": 0.04, "depth": 0.01, "ensembled": (0.01 + 0.09) / 2, "total": 0.35}
    for part, value in expected.items():
        mean = np.mean([getattr(error, part).value for error in errors])
        spread = np.std([getattr(error, part).value for error in errors])
        assert abs(mean - value) < 4 * spread / 4000**0.5 + 1e-12, (part, mean)
    stated = np.sqrt(np.mean([error.mean.error**2 for error in errors]))
    assert 0.7 < stated / np.std([error.mean.value for error in errors]) < 1.5


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: finite_size_error(Ensemble.of(np.ones((2, 3))), *np.ones((2, 3)), limit_error=np.ones(2)),
            "limit_err",
        ),
        (lambda: finite_size_error(Ensemble.of(np.ones((2, 3))), np.ones(2), np.ones(3)), "at_depth has shape"),
        (lambda: Ensemble.of(3.0), "at least two networks"),
        (lambda: Ensemble.of(np.ones((1, 3))), "at least two networks"),
        (lambda: Ensemble.of(np.array([[1.0], [np.nan]])), "outputs has entries that are not finite"),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
