import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from repcap_utils import bounds, codes, paths
from repcap_utils.errors import RepcapError

quick = settings(deadline=None, derandomize=True, max_examples=60)

# Sets of lines that attain Levenshtein's bound.
TIGHT = [
    (4, 1 / 2, 12),
    (6, 1 / 2, 36),
    (7, 1 / 2, 63),
    (8, 1 / 2, 120),
    (16, 1 / 4, 144),
    (22, 1 / 3, 1408),
    (23, 1 / 5, 276),
    (23, 1 / 3, 2300),
    (24, 1 / 2, 98280),
    (64, 1 / 8, 2112),
    (256, 1 / 16, 33024),
    (4096, 1 / 64, 8392704),
    (16384, 1 / 128, codes.delsarte_goethals_lines(14, 0)),
]

# d, epsilon, 1/P, explicit lines, coherence, Levenshtein's bound, its degree.
MODELS = [
    (2048, 0.06329, 241, 8.59e9, 0.06250, 3.13e14, 5),
    (2560, 0.05497, 185, 4.2e6, 0.03125, 1.42e13, 4),
    (3072, 0.05536, 467, 7.18e9, 0.05111, 4.74e15, 5),
    (3584, 0.07501, 1.44e5, 2.05e13, 0.07093, 2.89e25, 8),
    (4096, 0.06450, 2.78e4, 3.52e13, 0.06250, 2.1e23, 7),
    (4608, 0.09013, 1.14e9, 1.28e17, 0.08346, 3.15e40, 14),
    (5120, 0.06766, 7.95e5, 8.55e13, 0.05933, 3.6e29, 9),
    (7168, 0.06763, 1.01e8, 1.18e18, 0.06682, 2.57e38, 12),
    (8192, 0.09962, 6.28e18, 3.85e25, 0.09378, 5.93e75, 26),
    (16384, 0.04813, 1.41e9, 7.37e19, 0.04420, 1.92e48, 14),
]

# d, k, best known coherence (N. J. A. Sloane's tables of Grassmannian packings), lower bound.
SMALL = [
    (3, 6, 0.44721360, 0.44721360),
    (3, 7, 0.57735027, 0.57735027),
    (3, 8, 0.64758898, 0.60000000),
    (3, 10, 0.68614066, 0.65465367),
    (3, 12, 0.74452084, 0.71837630),
    (3, 16, 0.79465447, 0.78154057),
    (4, 6, 1 / 3, 0.31622777),
    (4, 8, math.sqrt(2) - 1, 0.37796447),
    (4, 16, 0.61803399, 0.57735027),
    (5, 16, 0.44721360, 0.44721360),
    (5, 20, 0.50000000, 0.48795004),
    (6, 16, 1 / 3, 1 / 3),
    (7, 10, 0.23606798, 0.21821789),
    (7, 28, 1 / 3, 1 / 3),
    (8, 16, 0.27395147, 0.25819889),
    (8, 36, 5 / 14, 0.31622777),
    (8, 50, 0.45161364, 0.40824829),
    (9, 48, 1 / 3, 1 / 3),
    (10, 16, 0.20000000, 0.20000000),
    (10, 20, 0.23570226, 0.22941573),
    (13, 26, 0.20000000, 0.20000000),
    (16, 20, 0.12207423, 0.11470787),
]


@pytest.mark.parametrize(("d", "epsilon", "lines"), TIGHT)
def test_levenshtein_is_attained(d, epsilon, lines):
    assert bounds.levenshtein_capacity(d, epsilon).log10_lines == pytest.approx(math.log10(lines), abs=1e-11)
    assert bounds.levenshtein(lines, d) == pytest.approx(epsilon, abs=1e-11)


@pytest.mark.parametrize("n", [3, 4, 7, 50])
def test_levenshtein_in_the_plane_is_the_regular_star(n):
    epsilon = math.cos(math.pi / n)
    assert 10 ** bounds.levenshtein_capacity(2, epsilon).log10_lines == pytest.approx(n, rel=1e-9)
    assert bounds.levenshtein(n, 2) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(("d", "k", "known", "bound"), SMALL)
def test_lower_bound_against_known_packings(d, k, known, bound):
    assert bounds.lower_bound(k, d) == pytest.approx(bound, abs=6e-9)
    assert bounds.lower_bound(k, d) <= known + 1e-8


@pytest.mark.parametrize(
    ("d", "k"), [(15, 30), (15, 36), (19, 76), (20, 96), (21, 126), (22, 176), (23, 276), (7, 28), (3, 6)]
)
def test_equiangular_sets_attain_welch(d, k):
    assert bounds.welch(k, d) == pytest.approx(math.sqrt((k - d) / (d * (k - 1))), rel=1e-14)
    assert bounds.levenshtein(k, d) == pytest.approx(bounds.welch(k, d), rel=1e-10)


@pytest.mark.parametrize(("d", "epsilon", "greedy", "explicit", "coherence", "upper", "degree"), MODELS)
def test_published_models(d, epsilon, greedy, explicit, coherence, upper, degree):
    assert 10 ** bounds.greedy_capacity(d, epsilon) == pytest.approx(greedy, rel=5e-3)
    known = bounds.best_known_capacity(d, epsilon)
    assert 10**known.log10_lines == pytest.approx(explicit, rel=2e-3)
    assert known.coherence == pytest.approx(coherence, abs=6e-6)
    limit = bounds.levenshtein_capacity(d, epsilon)
    assert 10**limit.log10_lines == pytest.approx(upper, rel=4e-3)
    assert limit.degree == degree


def test_every_published_capacity_lies_below_an_explicit_construction():
    table = np.genfromtxt(paths.PUBLISHED / "models.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    rows = [row for row in table if row["epsilon"] < 0.1]
    assert len(rows) == 31
    for row in rows:
        known = bounds.best_known_capacity(int(row["d_model"]), float(row["epsilon"]))
        assert known.log10_lines > math.log10(row["capacity"]), row["model"]


def test_4096_between_bounds():
    assert 10 ** bounds.levenshtein_capacity(4096, 1 / 32).log10_lines == pytest.approx(2.069e10, rel=3e-4)
    assert 10 ** bounds.best_known_capacity(4096, 1 / 32).log10_lines == pytest.approx(17179873280)
    assert 10 ** bounds.levenshtein_capacity(4096, 1 / 16).log10_lines == pytest.approx(1.361e22, rel=4e-4)
    assert bounds.best_known_capacity(4096, 1 / 64).construction == "Kerdock (m = 12)"


@pytest.mark.parametrize(
    ("d", "epsilon", "construction"),
    [
        (1, 0.5, "orthonormal basis"),
        (100, 0.01, "orthonormal basis"),
        (3, 0.9, "greedy"),
        (62, 1 / math.sqrt(31), "polynomial phases (p = 31, t = 2)"),
        (2048, 1 / 16, "Delsarte-Goethals (m = 11, r = 2)"),
    ],
)
def test_the_best_construction_is_named(d, epsilon, construction):
    assert bounds.best_known_capacity(d, epsilon).construction == construction


@quick
@given(d=st.integers(2, 3000), epsilon=st.floats(0.005, 0.9))
def test_lower_bounds_never_exceed_upper_bounds(d, epsilon):
    known = bounds.best_known_capacity(d, epsilon)
    assert known.coherence <= epsilon
    # Greedy is a real number below an integer; an integer number of lines meets the bound at d = 2 exactly.
    assert known.log10_lines <= bounds.levenshtein_capacity(d, epsilon).log10_lines + 1e-9


@quick
@given(d=st.integers(2, 5000), k=st.integers(2, 10**30))
def test_levenshtein_inverts_its_capacity(d, k):
    if d <= 4:
        k = 2 + k % 1000
    epsilon = bounds.levenshtein(k, d)
    assert bounds.welch(k, d) <= epsilon + 1e-12
    if k > d:
        # Just above k = d the bound is so flat in k that float64 resolves epsilon, not k.
        slack = 1e-9 if k > d + 1 else 1e-6
        assert bounds.levenshtein_capacity(d, epsilon).log10_lines == pytest.approx(math.log10(k), abs=slack)
    else:
        assert epsilon == 0


@quick
@given(d=st.integers(2, 400), epsilon=st.floats(0.01, 0.95), factor=st.floats(1.0001, 1.05))
def test_capacities_grow_with_epsilon(d, epsilon, factor):
    for capacity in (bounds.greedy_capacity, lambda *a: bounds.levenshtein_capacity(*a).log10_lines):
        assert capacity(d, epsilon) <= capacity(d, epsilon * factor) + 1e-12


@pytest.mark.parametrize("d", [2, 3, 10, 100, 2000])
def test_the_bound_is_continuous_where_its_pieces_meet(d):
    """At the meeting points it equals the binomials C(d + j - 1, j)."""
    for j in range(1, 9):
        value = math.comb(d + j - 1, j)
        if value > d:
            epsilon = bounds.levenshtein(value, d)
            below = bounds.levenshtein_capacity(d, epsilon * (1 - 1e-9)).log10_lines
            above = bounds.levenshtein_capacity(d, epsilon * (1 + 1e-9)).log10_lines
            assert below == pytest.approx(math.log10(value), abs=1e-6)
            assert above == pytest.approx(math.log10(value), abs=1e-6)


@pytest.mark.parametrize(("d", "epsilon"), [(2, 0.5), (64, 0.3), (4096, 0.0645)])
def test_greedy_is_the_inverse_of_the_cap(d, epsilon):
    probability = betainc((d - 1) / 2, 0.5, 1 - epsilon**2)
    assert bounds.greedy_capacity(d, epsilon) == pytest.approx(-math.log10(probability), rel=1e-12)


def test_greedy_where_the_probability_underflows():
    assert bounds.greedy_capacity(16384, 0.5) == pytest.approx(1025.33997369306, abs=1e-9)
    assert bounds.greedy_capacity(1_000_000, 0.04) == pytest.approx(349.413873511, abs=1e-8)


def test_extreme_arguments_stay_finite():
    assert bounds.greedy_capacity(1, 0.5) == 0
    assert bounds.greedy_capacity(5, 1e-300) >= 0
    assert bounds.levenshtein_capacity(1, 0.5) == (0.0, 0)
    assert bounds.levenshtein_capacity(16384, 1e-9).log10_lines == pytest.approx(math.log10(16384))
    assert math.isfinite(bounds.levenshtein_capacity(4096, 0.9).log10_lines)
    assert bounds.levenshtein(3, 1) == 1
    assert bounds.levenshtein(10**300, 16384) < 1
    assert bounds.best_known_capacity(2, 0.5).log10_lines == pytest.approx(math.log10(2))


def test_welch_and_orthoplex_are_vectorised():
    assert bounds.welch(5, 5) == bounds.welch(3, 5) == 0
    assert isinstance(bounds.welch(6, 3), float)
    assert np.allclose(bounds.welch([[6], [9]], [3, 9]), [[1 / math.sqrt(5), 0], [0.5, 0]])
    assert np.array_equal(bounds.orthoplex([10, 11], 4), [0, 0.5])
    assert isinstance(bounds.orthoplex(11, 4), float)


@pytest.mark.parametrize("function", [bounds.welch, bounds.orthoplex, bounds.levenshtein, bounds.lower_bound])
@pytest.mark.parametrize(
    ("k", "d", "name"), [(1, 3, "k = 1"), (5, 0, "d = 0"), (math.nan, 3, "k = nan"), (5, -2, "d = -2")]
)
def test_counts_are_checked(function, k, d, name):
    with pytest.raises(RepcapError, match=name):
        function(k, d)


@pytest.mark.parametrize("function", [bounds.levenshtein_capacity, bounds.greedy_capacity, bounds.best_known_capacity])
@pytest.mark.parametrize(
    ("d", "epsilon", "name"),
    [
        (0, 0.1, "d = 0"),
        (2.5, 0.1, "d = 2.5"),
        (3, 0, "epsilon = 0"),
        (3, 1, "epsilon = 1"),
        (3, math.nan, "epsilon = nan"),
    ],
)
def test_capacity_arguments_are_checked(function, d, epsilon, name):
    with pytest.raises(RepcapError, match=name):
        function(d, epsilon)


def test_degrees_beyond_the_limit_are_refused():
    with pytest.raises(RepcapError, match="take an epsilon farther below 1"):
        bounds.levenshtein_capacity(3, 1 - 1e-14)
    with pytest.raises(RepcapError, match="take fewer"):
        bounds.levenshtein(10**9, 2)


def test_best_known_capacity_takes_numpy_integers():
    assert bounds.best_known_capacity(np.int64(4096), 1 / 64) == bounds.best_known_capacity(4096, 1 / 64)


def test_levenshtein_takes_numpy_integers():
    assert bounds.levenshtein(np.int32(10**9), np.int32(2048)) == bounds.levenshtein(10**9, 2048)
