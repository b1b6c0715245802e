"""The widest gap on hand-made values, and the test's answer on populations that are known."""

import numpy as np
import pytest

from repcap_utils import gaps
from repcap_utils.errors import RepcapError


@pytest.mark.parametrize(("fewest", "expected"), [(1, 10.0), (2, 3.0), (3, 2.0)])
def test_a_gap_needs_values_on_both_sides(fewest, expected):
    values = np.array([0.0, 1.0, 4.0, 6.0, 7.0, 8.0, 18.0])
    assert gaps.widest_inner(values[[3, 0, 6, 1, 5, 2, 4]], fewest) == expected


def test_rows_are_samples_of_their_own():
    values = np.array([[0.0, 1.0, 5.0, 6.0], [0.0, 1.0, 2.0, 9.0]])
    assert gaps.widest_inner(values, 1).tolist() == [4.0, 7.0]
    assert gaps.widest_inner(values, 2).tolist() == [4.0, 1.0]


@pytest.mark.parametrize("fewest", [0, 3])
def test_too_few_values_are_refused(fewest):
    with pytest.raises(RepcapError, match="on each side of a gap"):
        gaps.widest_inner(np.arange(5.0), fewest)


def test_two_equal_groups_become_one_mode_at_half_their_distance():
    # the sum of two normal densities has one mode just where their means lie at most two standard deviations apart
    values = np.repeat([0.0, 4.0], 10)
    assert gaps.critical_bandwidth(values) == pytest.approx(2.0, rel=5e-3)


@pytest.mark.parametrize("population", [gaps.NORMAL, gaps.UNIMODAL])
def test_two_groups_are_found_and_one_is_not(population):
    generator = np.random.default_rng(0)
    one = generator.normal(size=40)
    two = np.concatenate([generator.normal(-4, 0.5, 20), generator.normal(4, 0.5, 20)])
    assert gaps.compare(one, 5, population, draws=500, seed=1).probability > 0.05
    assert gaps.compare(two, 5, population, draws=500, seed=1).probability < 0.01


@pytest.mark.parametrize("population", [gaps.NORMAL, gaps.UNIMODAL])
def test_draws_keep_mean_and_variance_and_the_seed_decides(population):
    values = np.random.default_rng(2).exponential(size=30)
    sample = gaps._sampler(population)(values, 4000, np.random.default_rng(0))
    assert sample.mean() == pytest.approx(values.mean(), abs=0.02)
    assert sample.var() == pytest.approx(values.var(ddof=1), rel=0.06)
    assert gaps.compare(values, 3, population, draws=50, seed=4) == gaps.compare(
        values, 3, population, draws=50, seed=4
    )


def test_the_probability_is_that_of_equal_ranks():
    # a sample from the very population is as likely to have any rank: a fifth of them lie below a fifth
    generator = np.random.default_rng(5)
    found = [
        gaps.compare(generator.normal(size=30), 3, gaps.NORMAL, draws=99, seed=seed).probability for seed in range(200)
    ]
    assert np.mean(np.array(found) <= 0.2) == pytest.approx(0.2, abs=0.09)


def test_an_unknown_population_is_refused():
    with pytest.raises(RepcapError, match="choose normal or one mode"):
        gaps.compare(np.arange(9.0), 2, "uniform", draws=9, seed=0)
