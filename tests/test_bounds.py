import math
import time

import mpmath
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from repcap_utils import bounds, codes, paths, reference, sweep
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


def published_models():
    return pd.read_csv(paths.PUBLISHED / "models.csv")


@pytest.mark.parametrize(("d", "epsilon", "lines"), TIGHT)
def test_levenshtein_is_attained(d, epsilon, lines):
    assert bounds.levenshtein_capacity(d, epsilon).log10_lines == pytest.approx(math.log10(lines), abs=1e-11)
    assert 10 ** bounds.levenshtein_capacity(d, epsilon).log10_lines == pytest.approx(lines, rel=1e-9)
    assert bounds.levenshtein(lines, d) == pytest.approx(epsilon, abs=1e-11)


def levenshtein_to_fifty_digits(d, epsilon):
    """log10 of the bound and its degree, from hypergeometric series and polynomial roots instead of recurrences."""
    with mpmath.workdps(50):
        s, alpha = mpmath.mpf(epsilon) ** 2, mpmath.mpf(d - 3) / 2

        def q(k, a, b, u):
            return mpmath.hyp2f1(-k, k + alpha + a + b + mpmath.mpf(1) / 2, alpha + a + 1, 1 - u)

        def zero(k, a, b):
            if k == 0:
                return mpmath.mpf(0)
            series = [mpmath.rf(-k, n) * mpmath.rf(k + alpha + a + b + mpmath.mpf(1) / 2, n) for n in range(k + 1)]
            series = [c / mpmath.rf(alpha + a + 1, n) / mpmath.factorial(n) for n, c in enumerate(series)]
            return 1 - min(mpmath.re(z) for z in mpmath.polyroots(series[::-1], maxsteps=500, extraprec=400))

        k = next(k for k in range(1, 100) if zero(k, 1, 1) >= s)
        if s <= zero(k, 1, 0):
            bound, degree = (
                (1 - q(k - 1, 1, 0, s) / q(k, 0, 0, s)) * mpmath.binomial(d + 2 * k - 3, 2 * k - 2),
                2 * k - 1,
            )
        else:
            bound, degree = (1 - q(k, 1, 0, s) / q(k, 0, 1, s)) * mpmath.binomial(d + 2 * k - 1, 2 * k), 2 * k
        return float(mpmath.log10(bound)), degree


@pytest.mark.parametrize(("d", "epsilon"), [(4096, 0.0645), (8192, 0.09962), (16384, 0.04813), (3, 0.7), (40, 0.2)])
def test_levenshtein_to_fifty_digits(d, epsilon):
    exact, degree = levenshtein_to_fifty_digits(d, epsilon)
    found = bounds.levenshtein_capacity(d, epsilon)
    assert found.degree == degree
    assert found.log10_lines == pytest.approx(exact, abs=1e-9)


def test_all_published_models_take_less_than_half_a_second():
    models = published_models()
    bounds._largest_zero.cache_clear()
    start = time.process_time()
    found = bounds.levenshtein_capacity(models.d_model, models.epsilon)
    assert time.process_time() - start < 0.5
    assert len(found.log10_lines) == 45
    assert (found.log10_lines > np.log10(models.d_model)).all()


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
    rows = published_models().query("epsilon < 0.1")
    assert len(rows) == 31
    for row in rows.itertuples():
        known = bounds.best_known_capacity(row.d_model, row.epsilon)
        assert known.log10_lines > math.log10(row.capacity), row.model


def test_4096_between_bounds():
    assert 10 ** bounds.levenshtein_capacity(4096, 1 / 32).log10_lines == pytest.approx(2.069e10, rel=3e-4)
    assert 10 ** bounds.best_known_capacity(4096, 1 / 32).log10_lines == pytest.approx(17179873280)
    assert 10 ** bounds.levenshtein_capacity(4096, 1 / 16).log10_lines == pytest.approx(1.361e22, rel=4e-4)
    assert bounds.best_known_capacity(4096, 1 / 64).construction == "Kerdock (m = 12)"


@pytest.mark.parametrize(
    ("d", "epsilon", "construction"),
    [
        (2, 0.5, "orthonormal basis"),
        (100, 0.01, "orthonormal basis"),
        (3, 0.9, "greedy"),
        (62, 1 / math.sqrt(31), "polynomial phases (p = 31, t = 2)"),
        (62, 0.34, "polynomial phases (p = 31, t = 3)"),  # by its exact coherence, below Weil's bound
        (512, 2**-4.5, "mutually unbiased bases (m = 9)"),
        (2, 0.71, "mutually unbiased bases (m = 1)"),
        (2048, 1 / 16, "Delsarte-Goethals (m = 11, r = 2)"),
    ],
)
def test_the_best_construction_is_named(d, epsilon, construction):
    known = bounds.best_known_capacity(d, epsilon)
    assert known.construction == construction
    assert known.reference == bounds.REFERENCES[construction.split(" (")[0]]


@pytest.mark.parametrize(
    ("k", "d", "construction", "coherence"),
    [
        (64, 64, "orthonormal basis", 0),
        (2000, 64, "Kerdock (m = 6)", 1 / 8),
        (2113, 64, "Delsarte-Goethals (m = 6, r = 1)", 1 / 4),
        (32000, 4096, "Kerdock (m = 12)", 1 / 64),
        (1984, 62, "polynomial phases (p = 31, t = 2)", 1 / math.sqrt(31)),
        (10**13, 4096, "Delsarte-Goethals (m = 12, r = 2)", 1 / 16),
        (1024, 512, "mutually unbiased bases (m = 9)", 2**-4.5),
        (1025, 512, "Delsarte-Goethals (m = 9, r = 1)", 1 / 16),
        (codes.delsarte_goethals_lines(12, 2), 4096, "Delsarte-Goethals (m = 12, r = 2)", 1 / 16),
        (codes.delsarte_goethals_lines(12, 2) + 1, 4096, "polynomial phases (p = 2039, t = 5)", 4 / math.sqrt(2039)),
    ],
)
def test_the_lowest_construction_for_a_number_of_lines(k, d, construction, coherence):
    known = bounds.best_known_coherence(k, d)
    assert known.construction == construction
    assert known.coherence == pytest.approx(coherence, abs=1e-15)
    assert known.coherence >= bounds.lower_bound(k, d) - 1e-12


def test_polynomial_phases_by_their_exact_coherence():
    exact = bounds.best_known_coherence(32000, 128)
    assert exact.construction == "polynomial phases (p = 61, t = 3)"
    assert exact.coherence == pytest.approx(codes.polynomial_phases_exact_coherence(61, 3), abs=1e-15)
    assert exact.coherence < 0.24199 < codes.polynomial_phases_coherence(61, 3)
    assert exact.lines == codes.polynomial_phases_lines(61, 3) == 454084
    assert bounds.best_known_coherence(32000, 128, weil=True).construction == "Delsarte-Goethals (m = 7, r = 2)"
    assert bounds.best_known_capacity(62, 0.34).lines == 59644


@quick
@given(d=st.integers(4, 300), k=st.integers(2, 10**6))
def test_capacity_and_coherence_have_the_same_candidates(d, k):
    try:
        known = bounds.best_known_coherence(k, d)
    except RepcapError:
        return
    assert known.lines >= k
    if known.coherence:
        assert bounds.best_known_capacity(d, known.coherence).log10_lines >= known.log10_lines


def test_the_brackets_of_all_published_models_take_less_than_half_a_second():
    models = published_models()
    bounds._largest_zero.cache_clear()
    bounds._phases_coherence.cache_clear()
    start = time.process_time()
    found = [bounds.bracket(*pair) for pair in zip(models.d_model, models.epsilon, strict=True)]
    assert time.process_time() - start < 0.5
    assert len(found) == 45


def test_no_construction_has_that_many_lines():
    with pytest.raises(RepcapError, match="no construction here has 100 lines in 3 dimensions"):
        bounds.best_known_coherence(100, 3)


@quick
@given(d=st.integers(2, 3000), epsilon=st.floats(0.005, 0.9))
def test_lower_bounds_never_exceed_upper_bounds(d, epsilon):
    known, found = bounds.best_known_capacity(d, epsilon), bounds.bracket(d, epsilon)
    assert known.coherence <= epsilon
    assert found[:2] == known[:2]
    # Before the upper end is lifted to a construction that attains it.
    assert known.log10_lines <= bounds.levenshtein_capacity(d, epsilon).log10_lines + 1e-10
    assert found.log10_lower <= found.log10_upper
    if found.upper is not None:
        assert found.lower <= found.upper
        assert found.upper <= 10**found.log10_upper * (1 + 2e-10)
        assert found.lower == known.lines >= 10**known.log10_lines * (1 - 1e-12)


@quick
@given(d=st.integers(2, 3000), x=st.floats(0.3, 3))
def test_no_set_has_more_lines_than_the_upper_end(d, x):
    epsilon = min(x / math.sqrt(d), 0.95)
    found = bounds.bracket(d, epsilon)
    limit = math.floor(10 ** (found.log10_upper + 1e-10)) if found.upper is None else found.upper
    assert bounds.lower_bound(limit + 1, d) > epsilon


@pytest.mark.parametrize("d", [4, 100, 4096, 2**24])
def test_the_orthoplex_bound_ends_the_bracket_just_below_its_coherence(d):
    below, at = (bounds.bracket(d, factor / math.sqrt(d)) for factor in (1 - 1e-9, 1))
    assert (below.bound, below.degree, below.upper) == ("orthoplex", 1, d * (d + 1) // 2)
    assert at.bound == "Levenshtein"
    assert at.log10_upper == pytest.approx(math.log10(d * (d + 2) / 2), abs=1e-9)


@pytest.mark.parametrize(
    ("d", "epsilon", "exact"), [(16, 1 / 4, 144), (4096, 1 / 64, 8392704), (2, math.sqrt(0.5), 4), (64, 1e-9, 64)]
)
def test_the_ends_meet_where_the_bound_is_attained(d, epsilon, exact):
    found = bounds.bracket(d, epsilon)
    assert found.exact
    assert found.lower == found.upper == exact
    assert found.log10_lower <= found.log10_upper


def test_other_brackets_are_open():
    assert not any(bounds.bracket(d, e).exact for d, e in ((4096, 1 / 32), (4096, 0.0645), (3, 0.9), (16384, 0.9)))


@pytest.mark.parametrize(
    ("d", "epsilon"), [(4096, 0.999999), (10**8, 0.9), (3, 1 - 1e-16), (10**12, 0.5), (10**18, 0.01)]
)
def test_a_degree_beyond_the_limit_leaves_sidelnikov(d, epsilon):
    found = bounds.bracket(d, epsilon)
    assert (found.bound, found.upper) == ("Sidelnikov", None)
    assert found[2:4] == bounds.sidelnikov_capacity(d, epsilon)
    assert found.log10_lower < found.log10_upper < math.inf


@pytest.mark.parametrize(("d", "epsilon", "lines"), [(3, 0.9, 10), (3, 0.6, 3), (4096, 0.0645, 27753)])
def test_greedy_lines_are_whole(d, epsilon, lines):
    """1/P lines exist, hence the whole number above; 1 / P is 1 / (1 - epsilon) in three dimensions."""
    assert bounds._greedy(d, epsilon).lines == lines


@quick
@given(d=st.integers(2, 20000), epsilon=st.floats(0.003, 0.9))
def test_levenshtein_is_below_sidelnikov_and_rankin(d, epsilon):
    levenshtein = bounds.levenshtein_capacity(d, epsilon)
    sidelnikov, rankin = bounds.sidelnikov_capacity(d, epsilon), bounds.rankin_capacity(d, epsilon)
    assert levenshtein.log10_lines <= sidelnikov.log10_lines + 1e-9
    assert sidelnikov.log10_lines <= rankin + 1e-9
    if levenshtein.degree == 1:
        assert levenshtein.log10_lines == pytest.approx(rankin, abs=1e-9)


@pytest.mark.parametrize(("d", "epsilon"), [(3, 0.3), (10, 0.5), (64, 0.2), (64, 0.13), (300, 0.05), (1000, 0.1)])
def test_sidelnikov_is_the_smallest_over_all_powers(d, epsilon):
    moment, smallest, best = 1.0, math.inf, 0
    for p in range(1, 400):
        moment *= (2 * p - 1) / (d + 2 * p - 2)
        if epsilon ** (2 * p) < moment:
            bound = (1 - epsilon ** (2 * p)) / (moment - epsilon ** (2 * p))
            smallest, best = min((smallest, best), (bound, p))
    found = bounds.sidelnikov_capacity(d, epsilon)
    assert found.power == best
    assert found.log10_lines == pytest.approx(math.log10(smallest), abs=1e-9)


def test_rankin_is_the_inverse_of_welch():
    for k, d in ((4, 3), (100, 60), (5000, 4096)):
        assert 10 ** bounds.rankin_capacity(d, bounds.welch(k, d)) == pytest.approx(k, rel=1e-9)
    assert bounds.rankin_capacity(4, 0.5) == bounds.rankin_capacity(4, 0.9) == math.inf


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


CAPACITIES = {
    "greedy": bounds.greedy_capacity,
    "best known": lambda *a: bounds.best_known_capacity(*a).log10_lines,
    "Levenshtein": lambda *a: bounds.levenshtein_capacity(*a).log10_lines,
    "Sidelnikov": lambda *a: bounds.sidelnikov_capacity(*a).log10_lines,
    "Rankin": bounds.rankin_capacity,
}


@pytest.mark.parametrize("capacity", CAPACITIES.values(), ids=CAPACITIES)
@quick
@given(d=st.integers(2, 400), more=st.integers(1, 100), epsilon=st.floats(0.01, 0.9), factor=st.floats(1.0001, 1.05))
def test_capacities_grow_with_epsilon_and_dimension(capacity, d, more, epsilon, factor):
    here = capacity(d, epsilon)
    assert here <= capacity(d, epsilon * factor) + 1e-10
    assert here <= capacity(d + more, epsilon) + 1e-10


@quick
@given(d=st.integers(2, 500), k=st.integers(2, 10**6))
def test_coherence_bounds_grow_with_lines_and_fall_with_dimension(d, k):
    k = 2 + k % 1000 if d < 4 else k
    for bound in (bounds.welch, bounds.orthoplex, bounds.levenshtein):
        assert bound(k, d) <= bound(k + 1 + k // 10, d) + 1e-12
        assert bound(k, d) >= bound(k, d + 1) - 1e-12


def test_no_packing_of_ours_is_below_the_bounds():
    table = sweep.read(sweep.PACKING, sweep.STORES["packing"])
    assert len(table) > 50
    assert (table.coherence >= bounds.lower_bound(table.k, table.d) - 1e-8).all()


def test_no_published_packing_is_below_the_bounds():
    cells = reference.load("optimised")
    if cells is None:
        pytest.skip("no published sweep here; set REPCAP_REFERENCE or run `make reference`")
    assert (cells.epsilon >= bounds.lower_bound(cells.k, cells.d)).all()


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
    assert bounds.greedy_capacity(5, 1e-300) >= 0
    assert bounds.levenshtein_capacity(16384, 1e-9).log10_lines == pytest.approx(math.log10(16384))
    assert math.isfinite(bounds.levenshtein_capacity(4096, 0.9).log10_lines)
    assert bounds.levenshtein(10**300, 16384) < bounds.levenshtein(10**400, 16384) < 1
    for epsilon in (1e-170, 1e-300):
        assert bounds.levenshtein_capacity(64, epsilon) == (pytest.approx(math.log10(64)), 1)
        assert bounds.bracket(64, epsilon).exact
    steep = bounds.bracket(16384, 0.999)
    assert 22000 < steep.log10_lower < steep.log10_upper < bounds.sidelnikov_capacity(16384, 0.999).log10_lines < 34000
    assert bounds.best_known_capacity(2, 0.5).log10_lines == pytest.approx(math.log10(2))


def test_welch_and_orthoplex_are_vectorised():
    assert bounds.welch(5, 5) == bounds.welch(3, 5) == 0
    assert isinstance(bounds.welch(6, 3), float)
    assert np.allclose(bounds.welch([[6], [9]], [3, 9]), [[1 / math.sqrt(5), 0], [0.5, 0]])
    assert np.array_equal(bounds.orthoplex([10, 11], 4), [0, 0.5])
    assert isinstance(bounds.orthoplex(11, 4), float)


def test_capacities_are_vectorised():
    d, epsilon = np.array([[64], [4096]]), np.array([0.1, 0.2, 0.3])
    for name in ("greedy_capacity", "rankin_capacity"):
        single = [[getattr(bounds, name)(n, e) for e in epsilon] for n in (64, 4096)]
        assert np.array_equal(getattr(bounds, name)(d, epsilon), single)
        assert isinstance(single[0][0], float)
    for function in (bounds.levenshtein_capacity, bounds.sidelnikov_capacity):
        found, single = function(d, epsilon), [function(n, e) for n in (64, 4096) for e in epsilon]
        assert [tuple(pair) for pair in zip(found[0].flat, found[1].flat, strict=True)] == single
        assert isinstance(single[0][1], int)
    assert bounds.levenshtein([2000, 10**30], 64).tolist() == [bounds.levenshtein(k, 64) for k in (2000, 10**30)]
    assert bounds.lower_bound([[10], [20]], [4, 5, 6]).shape == (2, 3)


@pytest.mark.parametrize(
    "function",
    [bounds.welch, bounds.orthoplex, bounds.levenshtein, bounds.lower_bound, bounds.best_known_coherence],
)
@pytest.mark.parametrize(
    ("k", "d", "name"),
    [(1, 3, "k = 1"), (5, 1, "d = 1"), (5, 0, "d = 0"), (math.nan, 3, "k = nan"), (5, -2, "d = -2")],
)
def test_counts_are_checked(function, k, d, name):
    with pytest.raises(RepcapError, match=name):
        function(k, d)


@pytest.mark.parametrize(
    "function",
    [
        bounds.levenshtein_capacity,
        bounds.sidelnikov_capacity,
        bounds.rankin_capacity,
        bounds.greedy_capacity,
        bounds.best_known_capacity,
        bounds.bracket,
    ],
)
@pytest.mark.parametrize(
    ("d", "epsilon", "name"),
    [
        (0, 0.1, "d = 0"),
        (1, 0.1, "d = 1"),
        (2.5, 0.1, "d = 2.5"),
        (3, 0, "epsilon = 0"),
        (3, 1, "epsilon = 1"),
        (3, math.nan, "epsilon = nan"),
    ],
)
def test_capacity_arguments_are_checked(function, d, epsilon, name):
    with pytest.raises(RepcapError, match=name):
        function(d, epsilon)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bounds.levenshtein(2.5, 3), "k = 2.5: give a whole number from 2 on"),
        (lambda: bounds.levenshtein([5, 6], [2, 3, 4]), "shapes do not broadcast"),
        (lambda: bounds.best_known_coherence(5.5, 3), "k = 5.5: give a whole number"),
        (lambda: bounds.best_known_coherence([5, 6], 3), "one pair at a time"),
        (lambda: bounds.best_known_coherence(10**400, 3), r"10\^400.00 lines in 3 dimensions"),
        (lambda: bounds.best_known_capacity([5, 6], 0.3), "one pair at a time"),
        (lambda: bounds.bracket(5, [0.3, 0.4]), "one pair at a time"),
        (lambda: bounds.levenshtein("many", 3), "k: could not convert"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(RepcapError, match=words):
        call()


def test_degrees_beyond_the_limit_are_refused():
    with pytest.raises(RepcapError, match="take an epsilon farther below 1"):
        bounds.levenshtein_capacity(3, 1 - 1e-14)
    with pytest.raises(RepcapError, match="take fewer"):
        bounds.levenshtein(10**9, 2)
    with pytest.raises(RepcapError, match="take fewer"):
        bounds.levenshtein(10**400, 2)


def test_best_known_capacity_takes_numpy_integers():
    assert bounds.best_known_capacity(np.int64(4096), 1 / 64) == bounds.best_known_capacity(4096, 1 / 64)


def test_levenshtein_takes_numpy_integers():
    assert bounds.levenshtein(np.int32(10**9), np.int32(2048)) == bounds.levenshtein(10**9, 2048)
