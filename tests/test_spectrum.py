"""The two moments behind epsilon, against all pairs, against closed forms, and against draws."""

import math

import numpy as np
import pytest
import torch

from repcap_utils import models, spectrum, survey
from repcap_utils.embeddings import load
from repcap_utils.errors import RepcapError
from repcap_utils.similarity import cosine_moments, random_floor


def made(rows: int, d: int, shift: float, seed: int) -> torch.Tensor:
    """Normal rows of unequal variances and lengths about a mean of length `shift`, one of them zero, two of them equal."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=(rows, d)) * np.geomspace(1.0, 0.05, d) + shift * generator.normal(size=d) / d**0.5
    weight *= generator.lognormal(size=(rows, 1))
    weight[1], weight[2] = 0.0, weight[0]
    return torch.from_numpy(weight)


@pytest.mark.parametrize("rows,d", [(5, 3), (40, 64), (700, 64), (900, 5)])
@pytest.mark.parametrize("shift", [0.0, 0.3, 5.0])
def test_epsilon_is_that_of_all_pairs(rows, d, shift):
    weight = made(rows, d, shift, seed=rows + d)
    found, direct = spectrum.of_rows(weight), cosine_moments(weight)
    assert found.rows == direct.rows == rows - 1
    assert found.mean == pytest.approx(direct.mean, abs=1e-12)
    assert found.std == pytest.approx(direct.std, abs=1e-12)
    assert found.epsilon == pytest.approx(direct.epsilon, abs=1e-12)


def test_the_parts_are_those_of_the_unit_rows():
    weight = made(300, 8, 0.5, seed=1)
    unit = torch.nn.functional.normalize(weight[weight.norm(dim=1) > 0]).numpy()
    found = spectrum.of_rows(weight)
    singular = np.linalg.svd(unit, compute_uv=False)
    np.testing.assert_allclose(found.eigenvalues, singular**2 / len(unit), atol=1e-14)
    assert found.eigenvalues.sum() == pytest.approx(1.0, abs=1e-13)
    assert found.mean_length_squared == pytest.approx((unit.mean(axis=0) ** 2).sum(), abs=1e-14)
    assert found.effective_dimension == pytest.approx(1 / np.square(singular**2 / len(unit)).sum())


def test_an_orthonormal_basis_has_epsilon_zero():
    found = spectrum.of_rows(torch.eye(7, dtype=torch.float64))
    assert found.effective_dimension == pytest.approx(7.0)
    assert found.epsilon == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("mu", [0.0, 0.004, 0.02, 0.0399, 0.0401, 0.05, 0.1])
def test_the_bounds_hold_and_are_attained(mu):
    low, centred, high = spectrum.effective_dimension_bounds(0.1)
    dimension = 1.0 / (mu**2 + ((0.1 - mu) / 2) ** 2)
    assert (low, centred, high) == pytest.approx((100.0, 400.0, 500.0))
    assert low - 1e-9 <= dimension <= high + 1e-9
    assert (dimension >= centred) == (mu <= 0.04)
    if mu in (0.0, 0.02, 0.1):
        assert dimension == pytest.approx({0.0: centred, 0.02: high, 0.1: low}[mu])


def test_normal_rows_on_a_line_are_good_to_1e_7():
    found = spectrum.of_gaussian(np.zeros(3), np.diag([1.0, 0.0, 0.0]))
    assert found.eigenvalues == pytest.approx([1.0, 0.0, 0.0], abs=2e-7)


@pytest.mark.parametrize("epsilon", [0.0, -0.1, math.nan])
def test_an_epsilon_that_is_not_positive_is_refused(epsilon):
    with pytest.raises(RepcapError, match="give a positive number"):
        spectrum.effective_dimension_bounds(epsilon)


def test_one_row_is_no_pair():
    with pytest.raises(RepcapError, match="a pair needs two"):
        spectrum.of_rows(torch.ones(1, 4))


@pytest.mark.parametrize("d", [2, 3, 64, 600])
def test_isotropic_normal_rows_are_uniform_on_the_sphere(d):
    found = spectrum.of_gaussian(np.zeros(d), 3.0 * np.eye(d))
    np.testing.assert_allclose(found.eigenvalues, 1 / d, atol=1e-13)
    assert found.epsilon == pytest.approx(random_floor(d), abs=1e-12)


def test_two_axes_have_a_closed_form():
    # E[x^2 / (x^2 + y^2)] = s / (s + r) for independent normal x, y with standard deviations s, r
    found = spectrum.of_gaussian(np.zeros(2), np.diag([9.0, 1.0]))
    np.testing.assert_allclose(found.eigenvalues, [0.75, 0.25], atol=1e-13)


def test_one_axis_gives_the_sign():
    found = spectrum.of_gaussian(np.array([0.7]), np.array([[4.0]]))
    assert found.mean == pytest.approx(math.erf(0.35 / math.sqrt(2)) ** 2, abs=1e-12)
    assert found.eigenvalues == pytest.approx([1.0])


def test_normal_rows_agree_with_draws():
    weight = made(400, 12, 0.8, seed=3).numpy()
    mean, covariance = weight.mean(axis=0), np.cov(weight.T)
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, 200_000)
    assert spectrum.of_gaussian(mean, covariance).epsilon == pytest.approx(
        cosine_moments(torch.from_numpy(draws)).epsilon, rel=5e-3
    )


def test_a_negative_variance_is_refused():
    with pytest.raises(RepcapError, match="negative eigenvalue"):
        spectrum.of_gaussian(np.zeros(2), np.diag([1.0, -1.0]))


@pytest.mark.parametrize("name", ["smollm2-135m", "all-minilm-l6-v2", "whisper-tiny.en"])
def test_the_default_models_have_their_stored_epsilon(name):
    if not models.get(name).is_present:
        pytest.skip(f"the weights of {name} are not here")
    stored = survey.read().set_index("name").loc[name]
    found = spectrum.of_rows(load(name, tokens=False, unembedding=False).weight)
    assert found.mean == pytest.approx(stored["mean"], abs=1e-6)
    assert found.epsilon == pytest.approx(stored["epsilon"], abs=1e-6)
