"""The closed form against high-precision values, theory, simulation and the published sweep."""

import json
import math
import time

import mpmath
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from repcap_utils import paths, random_packing, sweep
from repcap_utils.errors import RepcapError


def reference() -> pd.DataFrame:
    path = paths.reference_dir() / "random_packing.json"
    if not path.is_file():
        pytest.skip("no random_packing.json in the reference folder; set REPCAP_REFERENCE or run `make reference`")
    return pd.DataFrame(json.loads(path.read_text()), columns=["k", "d", "epsilon"])


def synthetic(trials: int, n: int = 2000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    cells = pd.DataFrame({"k": rng.integers(1000, 30000, n), "d": rng.integers(64, 4096, n)})
    q = rng.uniform(size=n)
    return cells.assign(epsilon=random_packing.quantile(cells["k"], cells["d"], trials=trials, q=q))


# The probability of one pair


def test_exceedance_in_closed_cases():
    e = np.array([0.1, 0.5, 0.9])
    assert random_packing.exceedance(e, 2) == pytest.approx(2 * np.arccos(e) / np.pi)
    assert random_packing.exceedance(e, 3) == pytest.approx(1 - e)
    assert random_packing.exceedance([-1, 0, 0.999, 1, 2], 1).tolist() == [1, 1, 1, 0, 0]
    assert random_packing.exceedance([-1, 0, 1, 2], 7).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("e", "d"), [(0.3, 64), (0.0645, 4096), (0.2, 65536), (0.9, 8), (1 - 1e-12, 31), (0.05, 10**6), (0.9999999, 100)]
)
def test_log_exceedance_to_thirty_digits(e, d):
    with mpmath.workdps(30):
        a, x = mpmath.mpf(d - 1) / 2, 1 - mpmath.mpf(e) ** 2
        series = mpmath.hyp2f1(a + 0.5, 1, a + 1, x) * mpmath.sqrt(1 - x)  # the incomplete beta without its power
        exact = float(a * mpmath.log(x) + mpmath.log(series / a) - mpmath.log(mpmath.beta(a, 0.5)))
    assert random_packing.log_exceedance(e, d) == pytest.approx(exact, rel=1e-11)


# The law of the coherence


@settings(deadline=None, derandomize=True, max_examples=300)
@given(log10_k=st.floats(0.31, 300), d=st.integers(2, 65536), trials=st.integers(1, 10**6), q=st.floats(1e-6, 1 - 1e-6))
def test_quantile_inverts_the_distribution(log10_k, d, trials, q):
    k = 10**log10_k
    e = random_packing.quantile(k, d, trials=trials, q=q)
    assert 0 <= e <= 1
    if 1e-6 < e < 1 - 1e-4:
        assert random_packing.cdf(e, k, d, trials=trials) == pytest.approx(q, rel=1e-5, abs=1e-7)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(epsilon=st.floats(0.01, 0.99), d=st.integers(2, 65536), trials=st.integers(1, 10**6))
def test_capacity_inverts_the_median(epsilon, d, trials):
    k = random_packing.capacity(d, epsilon, trials=trials)
    assert k >= 1
    if 2 <= k < math.inf:
        assert random_packing.quantile(k, d, trials=trials) == pytest.approx(epsilon, rel=1e-8)


def test_one_pair_is_exact():
    e = np.linspace(0, 1, 11)
    assert random_packing.cdf(e, 2, 9) == pytest.approx(1 - random_packing.exceedance(e, 9))
    assert random_packing.mean(2, 2) == pytest.approx(2 / np.pi)
    assert random_packing.mean(2, 3) == pytest.approx(0.5)


def test_one_dimension_has_coherence_one():
    assert random_packing.quantile([2, 10, 1e50], 1).tolist() == [1, 1, 1]
    assert random_packing.cdf([0, 0.999, 1], 5, 1).tolist() == [0, 0, 1]
    assert random_packing.capacity(1, 0.5) == 1
    assert random_packing.simulate(5, 1, draws=2, seed=0).tolist() == [1, 1]


def test_the_constant_nears_four_far_beyond_any_sweep():
    c = random_packing.effective_c([1e3, 10**4.5, 1e9, 1e20], 4096)
    assert [round(value, 2) for value in c] == [3.36, 3.53, 3.70, 3.78]
    assert c[0] == pytest.approx(3.37, abs=0.007)
    assert round(random_packing.effective_c(1e100, 65536), 2) == 3.94


def test_the_constant_falls_again_when_k_is_exponential_in_d():
    beta = 0.5
    expected = (1 - math.exp(-4 * beta)) / beta
    assert random_packing.effective_c(math.exp(beta * 1400), 1400) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("trials", [1, 1000])
def test_the_expansion_is_the_limit(trials):
    for k, within in ((1e4, 5e-3), (1e20, 1e-3), (1e100, 1e-4)):
        ratio = random_packing.expansion(k, 1e8, trials=trials) / random_packing.quantile(k, 1e8, trials=trials)
        assert ratio == pytest.approx(1, abs=within)


def test_random_vectors_at_llama_2_7b():
    assert [int(random_packing.capacity(4096, 0.0645, trials=t)) for t in (1, 100, 1000)] == [196, 525, 635]


def test_no_size_overflows():
    k = np.array([1e20, 1e100, 1e200, 1e307])
    e = random_packing.quantile(k, 65536)
    assert (np.diff(e) > 0).all()
    assert random_packing.log10_capacity(65536, e) == pytest.approx(np.log10(k), rel=1e-9)
    assert random_packing.capacity(65536, 0.9) == math.inf
    leading = -65535 / 4 * math.log10(1 - 0.9**2)  # k^2 P of order 1
    assert random_packing.log10_capacity(65536, 0.9) == pytest.approx(leading, abs=3)
    assert random_packing.quantile(5, 3, trials=1e300, q=1e-320) == pytest.approx(0, abs=1e-7)


def test_the_mean_is_the_average_of_the_quantiles():
    q = (np.arange(4000) + 0.5) / 4000
    for trials in (1, 100):
        average = random_packing.quantile(2000, 256, trials=trials, q=q).mean()
        assert random_packing.mean(2000, 256, trials=trials) == pytest.approx(average, rel=1e-5)
    assert random_packing.mean([[10], [20]], [4, 5, 6]).shape == (2, 3)


@pytest.mark.parametrize(("k", "d", "e"), [(20, 6, 0.9), (2000, 256, 0.3), (10**6, 64, 0.5), (10**9, 4096, 0.1)])
def test_the_chen_stein_error(k, d, e):
    p, pairs = random_packing.exceedance(e, d), k * (k - 1) / 2
    expected = min(1, 1 / (pairs * p)) * pairs * (4 * k - 7) * p**2
    assert random_packing.chen_stein_error(e, k, d) == pytest.approx(min(1, expected), rel=1e-9)
    assert random_packing.chen_stein_error(e, k, d) <= 8 * pairs * p / k


def test_the_law_keeps_to_its_error():
    drawn = random_packing.simulate(40, 12, draws=2000, seed=4)
    for e in (0.6, 0.7, 0.8):
        share, noise = (drawn <= e).mean(), 4 / math.sqrt(2000)
        assert abs(share - random_packing.cdf(e, 40, 12)) <= random_packing.chen_stein_error(e, 40, 12) + noise
    assert random_packing.chen_stein_error([0, 1], 40, 12).tolist() == [1, 0]
    assert random_packing.chen_stein_error(0.5, 1e300, 3) == 1


def test_the_published_grid_takes_less_than_a_second():
    grid = pd.DataFrame(sweep.published_random_grid(), columns=["k", "d"])
    assert len(grid) == 256
    start = time.process_time()
    expected = random_packing.mean(grid.k, grid.d, trials=100)
    middle = random_packing.quantile(grid.k, grid.d, trials=100)
    assert time.process_time() - start < 1
    assert np.abs(expected / middle - 1).max() < 0.01


# Simulation


@pytest.mark.parametrize(("k", "d"), [(300, 64), (500, 128), (200, 24)])
def test_simulation_follows_the_law(k, d):
    drawn = random_packing.simulate(k, d, draws=200, seed=1)
    assert stats.kstest(random_packing.cdf(drawn, k, d), "uniform").pvalue > 0.001
    error = drawn.std(ddof=1) / math.sqrt(len(drawn))
    assert abs(drawn.mean() - random_packing.mean(k, d)) < 4 * error
    # The test can tell: the law of 30 % fewer vectors is excluded.
    assert abs(drawn.mean() - random_packing.mean(0.7 * k, d)) > 4 * error


def test_the_smallest_of_several_sets_follows_its_law():
    drawn = random_packing.simulate(200, 32, draws=100, trials=5, seed=2)
    assert stats.kstest(random_packing.cdf(drawn, 200, 32, trials=5), "uniform").pvalue > 0.001
    assert stats.kstest(random_packing.cdf(drawn, 200, 32), "uniform").pvalue < 1e-6


def test_one_larger_draw_is_no_outlier():
    (drawn,) = random_packing.simulate(2000, 256, draws=1, seed=0)
    assert 1e-3 < random_packing.cdf(drawn, 2000, 256) < 1 - 1e-3


def test_a_simulation_is_repeatable_and_resumable():
    whole = random_packing.simulate(50, 8, draws=6, seed=7)
    assert whole.shape == (6,) and len(set(whole)) == 6
    parts = [random_packing.simulate(50, 8, draws=n, seed=7, first=first) for n, first in ((2, 0), (4, 2))]
    assert np.array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, random_packing.simulate(50, 8, draws=6, seed=8))


def test_panels_see_every_pair(monkeypatch):
    rng = np.random.default_rng(np.random.SeedSequence([3, 100, 6, 0]))
    vectors = rng.standard_normal((100, 6), dtype=np.float32).astype(float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = np.abs(vectors @ vectors.T - np.eye(100)).max()
    for panel in (1, 700, 10**6):
        monkeypatch.setattr(random_packing, "_PANEL", panel)
        assert random_packing.simulate(100, 6, draws=1, seed=3)[0] == pytest.approx(expected, abs=1e-6)


# Inference


@pytest.mark.parametrize("trials", [1, 100, 1000])
def test_the_number_of_trials_is_recovered(trials):
    cells = synthetic(trials)
    found, error = random_packing.trials_from_data(cells)
    assert error == pytest.approx(found / math.sqrt(2000))
    assert abs(found - trials) < 4 * error
    assert random_packing.ks_test(cells, trials).pvalue > 0.001
    assert random_packing.ks_test(cells, 2 * trials).pvalue < 1e-6


def test_the_published_sweep_behaves_like_a_hundred_trials():
    cells = reference()
    found, error = random_packing.trials_from_data(cells)
    assert (round(found, 1), round(error, 1)) == (99.0, 6.2)
    hundred, thousand = random_packing.ks_test(cells, 100), random_packing.ks_test(cells, 1000)
    assert hundred.pvalue == pytest.approx(0.81, abs=0.01)
    assert -122.5 < math.log10(thousand.pvalue) < -121.5
    assert hundred.n == 256


@pytest.mark.parametrize(("trials", "bias", "mape", "c"), [(100, -0.016, 0.64, 3.030), (1000, 1.25, 1.32, 2.956)])
def test_the_expected_coherence_replaces_the_published_sweep(trials, bias, mape, c):
    cells = reference()
    expected = random_packing.mean(cells["k"], cells["d"], trials=trials)
    error = 100 * (cells["epsilon"] / expected - 1)
    assert error.mean() == pytest.approx(bias, abs=0.005)
    assert error.abs().mean() == pytest.approx(mape, abs=0.005)
    shape = np.sqrt(np.log(cells["k"]) / cells["d"])
    assert (shape @ expected / (shape @ shape)) ** 2 == pytest.approx(c, abs=5e-4)


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: random_packing.quantile(1, 64), "k = 1"),
        (lambda: random_packing.quantile(10, 0), "d = 0"),
        (lambda: random_packing.quantile(10, 64, trials=0), "trials = 0"),
        (lambda: random_packing.quantile(10, 64, q=1), "q = 1"),
        (lambda: random_packing.quantile(10, 64, q=0), "q = 0"),
        (lambda: random_packing.quantile(10**400, 64), "k: "),
        (lambda: random_packing.quantile([10, 20], [4, 5, 6]), "shapes do not broadcast"),
        (lambda: random_packing.cdf(math.nan, 10, 64), "e = nan"),
        (lambda: random_packing.exceedance(0.1, math.inf), "d = inf"),
        (lambda: random_packing.chen_stein_error(0.1, 1, 64), "k = 1"),
        (lambda: random_packing.capacity(64, 1.0), "epsilon = 1"),
        (lambda: random_packing.capacity(64, 0.0), "epsilon = 0"),
        (lambda: random_packing.expansion(2, 64, trials=10**6), "too small for the expansion"),
        (lambda: random_packing.simulate(1, 8, draws=1, seed=0), "k = 1"),
        (lambda: random_packing.simulate(10, 0, draws=1, seed=0), "d = 0"),
        (lambda: random_packing.simulate(10.5, 8, draws=1, seed=0), "k = 10.5"),
        (lambda: random_packing.simulate(10, 8, draws=0, seed=0), "draws = 0"),
        (lambda: random_packing.simulate(10, 8, draws=1, seed=-1), "seed = -1"),
        (lambda: random_packing.simulate(10, 8, draws=1, seed=0, device="abacus"), "device 'abacus' cannot be used"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(RepcapError, match=words):
        call()


def test_cells_that_say_nothing_about_trials_are_refused():
    cells = pd.DataFrame({"k": [10, 20], "d": [4, 4], "epsilon": [0.5, 1.0]})
    with pytest.raises(RepcapError, match="says nothing about T"):
        random_packing.trials_from_data(cells)
    with pytest.raises(RepcapError, match="T is unbounded"):
        random_packing.trials_from_data(cells.assign(epsilon=0.0))
    with pytest.raises(RepcapError, match="missing column"):
        random_packing.ks_test(cells.drop(columns="k"), 1)
