"""The formulas and their inverses, the fits on data with known constants, and the published values."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repcap_utils import capacity, paths
from repcap_utils.capacity import FORMS, FULL, JL, PUBLISHED, RATIO, estimate, shared_budget
from repcap_utils.errors import RepcapError

TRUE = {"jl": {"C": 0.9}, "ratio": {"C": 1.3}, "full": {"C": 0.5, "a": 1.08, "b": 1.4, "c": 0.98}}
FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def grid(form: capacity.Form, params: dict[str, float], noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    cells = pd.DataFrame([(k, d) for d in (32, 64, 128, 256, 512, 1024) for k in range(2000, 32001, 5000)])
    cells.columns = ["k", "d"]
    wobble = 1 + noise * np.random.default_rng(seed).standard_normal(len(cells))
    return cells.assign(epsilon=form.epsilon(cells["k"], cells["d"], params) * wobble)


def reference(name: str) -> pd.DataFrame:
    path = paths.reference_dir() / name
    if not path.is_file():
        pytest.skip(f"no {name} in the reference folder; set REPCAP_REFERENCE or run `make reference`")
    return pd.DataFrame(json.loads(path.read_text()), columns=["k", "d", "epsilon"])


# The formulas


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    form=st.sampled_from(list(FORMS.values())), d=st.floats(1, 1e6), epsilon=st.floats(1e-3, 0.999), user=st.booleans()
)
def test_the_inverse_undoes_the_formula_above_the_dimension(form, d, epsilon, user):
    params = TRUE[form.name] if user else None
    log10_k = form.log10_capacity(d, epsilon, params)
    k = form.capacity(d, epsilon, params)
    if log10_k > 300:
        assert k > 1e299
    elif k > d * (1 + 1e-6) or form is JL:
        assert form.epsilon(max(k, 1), d, params) == pytest.approx(epsilon, rel=1e-5, abs=1e-7)
    else:
        assert form is FULL or k == pytest.approx(d)


def test_hand_computed_values():
    assert JL.epsilon(math.e**2, 8, {"C": 1}) == pytest.approx(0.5)
    assert RATIO.epsilon(16 * math.e, 16, {"C": 4}) == pytest.approx(0.5)
    assert FULL.epsilon(64, 16, {"C": 1, "a": 2, "b": 2, "c": 2}) == pytest.approx(math.log(256) / 16)
    assert JL.capacity(8, 0.5, {"C": 1}) == pytest.approx(math.e**2)
    assert FULL.capacity(16, math.log(256) / 16, {"C": 1, "a": 2, "b": 2, "c": 2}) == pytest.approx(64)


def test_up_to_d_directions_are_orthogonal_for_all_but_the_lemma():
    k = np.array([1, 63, 64, 65])
    for form in (RATIO, FULL):
        assert (form.epsilon(k, 64) > 0).tolist() == [False, False, False, True]
    assert (JL.epsilon(k, 64) > 0).tolist() == [False, True, True, True]


@FORM
def test_scalars_and_arrays_agree(form):
    d, epsilon = np.array([[512], [4096]]), np.array([0.05, 0.1, 0.2])
    table = form.log10_capacity(d, epsilon)
    assert table.shape == (2, 3)
    assert table[1, 2] == form.log10_capacity(4096, 0.2)
    assert isinstance(form.capacity(4096, 0.1), float)


def test_no_overflow_where_only_the_logarithm_fits():
    assert RATIO.log10_capacity(1e6, 0.9) == pytest.approx(6 + 0.81e6 / 1.2934 / math.log(10))
    assert RATIO.capacity(1e6, 0.9) == math.inf
    assert np.isfinite(RATIO.capacity(4096, 0.45))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: JL.epsilon(0, 64), "k = 0"),
        (lambda: JL.epsilon(100, 0.5), "d = 0.5"),
        (lambda: JL.epsilon([100, 200], [1, 2, 3]), "shapes do not broadcast"),
        (lambda: JL.capacity(64, 0), "epsilon = 0"),
        (lambda: JL.capacity(64, -0.1), "epsilon = -0.1"),
        (lambda: JL.capacity(64, math.nan), "epsilon = nan"),
        (lambda: JL.capacity(math.inf, 0.1), "d = inf"),
        (lambda: JL.capacity("many", 0.1), "d: "),
        (lambda: JL.epsilon(100, 64, {"D": 1}), "it takes C"),
        (lambda: FULL.epsilon(100, 64, {"C": 1, "a": 1, "b": -1, "c": 1}), "positive"),
        (lambda: FULL.epsilon(100, 64, {"C": 1, "a": 1, "b": 1, "c": -1e3}), "has no float"),
        (lambda: FULL.capacity(1e6, 0.9, {"C": 1, "a": 1, "b": 0.01, "c": 1}), "has no float"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(RepcapError, match=words):
        call()


# Fits


@FORM
@pytest.mark.parametrize("weighting", ["epsilon", "log"])
def test_a_fit_recovers_the_constants_of_exact_data(form, weighting):
    fit = form.fit(grid(form, TRUE[form.name]), weighting=weighting)
    assert fit.params == pytest.approx(TRUE[form.name], rel=1e-6)
    assert fit.r2 == pytest.approx(1)
    assert fit.mape == pytest.approx(0, abs=1e-5)
    assert fit.nrmse == pytest.approx(0, abs=1e-5)


@FORM
def test_no_other_constants_have_a_smaller_sum_of_squares(form):
    fit = form.fit(grid(form, TRUE[form.name], noise=0.03))

    def loss(params):
        return float(np.sum((form.epsilon(fit.cells["k"], fit.cells["d"], params) - fit.cells["epsilon"]) ** 2))

    least = loss(fit.params)
    for name, value in fit.params.items():
        for factor in (0.999, 1.001):
            assert loss({**fit.params, name: value * factor}) > least


def test_quality_is_what_its_definition_says():
    cells = pd.DataFrame({"k": [3000, 8000, 20000], "d": [64, 128, 64], "epsilon": [0.3, 0.2, 0.4]})
    fit = RATIO.fit(cells)
    error = fit.residuals["residual"].to_numpy()
    assert error == pytest.approx(cells["epsilon"] - RATIO.epsilon(cells["k"], cells["d"], fit.params))
    assert fit.mape == pytest.approx(fit.residuals["ape"].mean())
    assert fit.nrmse == pytest.approx(100 * math.sqrt((error @ error) / 3) / 0.2)
    assert fit.r2 == pytest.approx(1 - (error @ error) / 0.02)
    assert fit.n == 3


def test_degenerate_cells_count_against_the_fit_unless_excluded():
    extra = pd.DataFrame({"k": [500, 800], "d": [1024, 1024], "epsilon": [1e-4, 0.0]})
    cells = pd.concat([grid(RATIO, TRUE["ratio"]), extra])
    kept, excluded, log = RATIO.fit(cells), RATIO.fit(cells, exclude_degenerate=True), RATIO.fit(cells, weighting="log")
    assert kept.params == excluded.params
    assert (kept.n, excluded.n, log.n) == (len(cells), len(cells) - 2, len(cells) - 2)
    assert kept.mape == pytest.approx(100 / (len(cells) - 1))
    assert np.isnan(kept.residuals["ape"].iloc[-1])
    assert JL.fit(cells).params != JL.fit(cells, exclude_degenerate=True).params


@pytest.mark.parametrize("resample", ["cells", "d"])
def test_bootstrap_intervals_hold_the_truth_and_repeat(resample):
    cells = grid(FULL, TRUE["full"], noise=0.01)
    fit = FULL.fit(cells, bootstrap=100, resample=resample, seed=3)
    assert set(fit.intervals) == {"C", "a", "b", "c"}
    for name, (low, high) in fit.intervals.items():
        assert low < TRUE["full"][name] < high
    assert fit.intervals == FULL.fit(cells, bootstrap=100, resample=resample, seed=3).intervals
    assert fit.intervals != FULL.fit(cells, bootstrap=100, resample=resample, seed=4).intervals
    assert FULL.fit(cells).intervals == {}


def test_leaving_a_dimension_out_shows_a_form_that_does_not_carry():
    cells = grid(RATIO, TRUE["ratio"])
    good, bad = RATIO.fit(cells).leave_one_d_out(), JL.fit(cells).leave_one_d_out()
    assert good["d"].tolist() == [32, 64, 128, 256, 512, 1024]
    assert good["n"].sum() == len(cells)
    assert good["max_ape"].max() == pytest.approx(0, abs=1e-6)
    assert bad.set_index("d")["mape"][1024] > 20
    assert (bad["max_ape"] >= bad["mape"]).all()
    with pytest.raises(RepcapError, match="single d = 64"):
        JL.fit(cells[cells["d"] == 64]).leave_one_d_out()


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda c: c.drop(columns="epsilon"), {}, "missing column.*epsilon"),
        (lambda c: c.assign(epsilon=math.nan), {}, "epsilon = nan in row 0"),
        (lambda c: c.assign(epsilon=1.5), {}, "epsilon = 1.5 in row 0"),
        (lambda c: c.assign(k=1), {}, "k = 1.0 in row 0"),
        (lambda c: c.assign(d=0), {}, "d = 0.0 in row 0"),
        (lambda c: c.assign(k="x"), {}, "must be numbers"),
        (lambda c: c.assign(epsilon=0.0), {}, "nothing to fit"),
        (lambda c: c.assign(d=50000), {"exclude_degenerate": True}, "none has k > d"),
        (lambda c: c.head(4), {}, "4 distinct usable cell"),
        (lambda c: c[c["d"] == 64], {}, "same k or the same d"),
        (lambda c: c.assign(epsilon=c["epsilon"].where(c["k"] > 2000, 0)), {"weighting": "log"}, "an epsilon is 0"),
        (lambda c: c, {"weighting": "sigma"}, "weighting = 'sigma'"),
        (lambda c: c, {"resample": "k"}, "resample = 'k'"),
        (lambda c: c, {"bootstrap": -1}, "bootstrap = -1"),
        (lambda c: c, {"bootstrap": 5, "seed": -1}, "seed = -1"),
        (lambda c: c.iloc[:0], {}, "0 row"),
    ],
)
def test_unusable_cells_are_named(change, options, words):
    with pytest.raises(RepcapError, match=words):
        FULL.fit(change(grid(FULL, TRUE["full"])), **options)


# The published values


def test_published_fits_come_out_of_the_published_cells():
    cells = reference("optimized_packing.json")
    jl, ratio, full = (form.fit(cells) for form in (JL, RATIO, FULL))
    assert (len(cells), jl.n) == (166, 166)
    assert round(jl.params["C"], 3) == 0.707
    assert (round(jl.r2, 3), round(jl.mape), round(jl.nrmse, 2)) == (0.963, 975, 5.35)
    assert round(ratio.params["C"], 4) == 1.2934
    assert (round(ratio.r2, 4), round(ratio.mape, 2), round(ratio.nrmse, 2)) == (0.9984, 7.95, 1.13)
    assert {k: round(v, 5) for k, v in full.params.items()} == PUBLISHED["full"].params
    assert (round(full.r2, 5), round(full.mape, 2), round(full.nrmse, 2)) == (0.99977, 5.35, 0.43)


def test_six_degenerate_cells_make_most_of_the_published_error():
    cells = reference("optimized_packing.json")
    fits = [form.fit(cells, exclude_degenerate=True) for form in (JL, RATIO, FULL)]
    assert [fit.n for fit in fits] == [160] * 3
    assert [f"{fit.mape:.3g}" for fit in fits] == ["52.4", "4.5", "1.8"]


def test_the_fit_without_small_dimensions_is_another():
    cells = reference("optimized_packing.json")
    fit = FULL.fit(cells[cells["d"] >= 256])
    assert {k: round(v, 3) for k, v in fit.params.items()} == {"C": 0.244, "a": 1.195, "b": 1.745, "c": 1.017}


def test_published_random_fit_comes_out_of_the_published_cells():
    fit = JL.fit(reference("random_packing.json"))
    assert fit.params["C"] == pytest.approx(PUBLISHED["jl_random"].params["C"], abs=1e-3)
    assert (round(fit.r2, 4), round(fit.mape, 1), round(fit.nrmse, 1), fit.n) == (0.9985, 1.3, 0.9, 256)


def test_published_domains_are_those_of_the_published_cells():
    for name, curve in (("optimized_packing.json", "full"), ("random_packing.json", "jl_random")):
        assert capacity.Domain.of(reference(name)) == PUBLISHED[curve].domain


def test_published_sensitivities():
    values = FULL.capacity([2048, 3072, 8192, 8192], [0.09, 0.09, 0.05, 0.09])
    assert [f"{value:.1e}" for value in values] == ["2.0e+07", "6.0e+08", "2.5e+08", "2.0e+14"]


def test_published_capacities_follow_within_the_rounding_of_epsilon():
    path = paths.PUBLISHED / "models.csv"
    if not path.is_file():
        pytest.skip(f"{path.name} of the published models is not there")
    table = pd.read_csv(path).dropna(subset=["capacity"])
    assert len(table) == 31
    ours = FULL.capacity(table["d_model"], table["epsilon"])
    equal = sum(f"{a:.2e}" == f"{b:.2e}" for a, b in zip(ours, table["capacity"], strict=True))
    assert equal == 23
    assert np.abs(ours / table["capacity"] - 1).max() < 0.005
    # The rest is rounding: of epsilon to 5e-6, of the capacity to 3 digits, of the four constants (5e-4 at most here).
    lowest, highest = (FULL.capacity(table["d_model"], table["epsilon"] + shift) for shift in (-5e-6, 5e-6))
    half = 10 ** (np.floor(np.log10(table["capacity"])) - 2) / 2
    inside = (lowest * (1 - 5e-4) <= table["capacity"] + half) & (highest * (1 + 5e-4) >= table["capacity"] - half)
    assert table["model"][~inside].tolist() == []


# Estimates


def test_llama_2_7b():
    result = estimate(4096, 0.0645)
    shown = {name: f"{value:.3g}" for name, value in result.values.items()}
    assert shown == {"full": "3.99e+07", "ratio": "2.16e+09", "jl": "2.93e+10", "jl_random": "277", "jl_proven": "8.42"}
    assert (result.capacity, result.low, result.high) == tuple(result.values[n] for n in ("full", "full", "ratio"))
    assert result.high / result.low == pytest.approx(54, abs=0.5)
    assert len(result.flags) == 1
    assert result.flags[0].startswith("k/d outside the fitted data (9.8e+03 > 7.8 at the nearest d, 4096)")


def test_llama_3_1_405b_by_form():
    result = estimate(16384, 0.04813)
    assert (f"{result.low:.1e}", f"{result.high:.1e}") == ("1.2e+11", "9.1e+16")
    assert [flag.split(" (")[0] for flag in result.flags] == [
        "d outside the fitted data",
        "k/d outside the fitted data",
    ]


def test_nothing_is_flagged_inside_the_data():
    assert estimate(32, 0.5).flags == ()
    assert estimate(4096, 0.02).flags == ()


def test_the_floor_of_the_formula_is_flagged():
    result = estimate(2048, 1e-6)
    assert result.capacity < 2048
    assert any(flag.startswith("k <= d") for flag in result.flags)


@pytest.mark.parametrize("epsilon", [1, 1.00449, 7.0])
def test_no_number_without_a_constraint(epsilon):
    result = estimate(384, epsilon)
    assert (result.capacity, result.low, result.high, result.log10_point) == (None,) * 4
    assert set(result.values.values()) == {None}
    assert result.flags == ("epsilon >= 1: cosines this large are no constraint",)


def test_beyond_floats_only_the_logarithm_is_given():
    result = estimate(65536, 0.9)
    assert result.capacity is None
    assert 1000 < result.log10_low < result.log10_high < 1e5
    assert result.flags[-1] == "k above 1.7e308: given as log10 only"


def test_further_fits_widen_the_interval():
    wide = capacity.Curve("mine", RATIO, {"C": 0.9}, None)
    result = estimate(4096, 0.0645, fits={"mine": wide})
    assert result.high == result.values["mine"] == wide.capacity(4096, 0.0645)
    with pytest.raises(RepcapError, match="ratio is the name of published"):
        estimate(4096, 0.0645, fits={"ratio": wide})


@settings(deadline=None, derandomize=True, max_examples=200)
@given(d=st.floats(1, 1e7), epsilon=st.floats(1e-12, 10))
def test_an_estimate_is_a_finite_number_or_none(d, epsilon):
    result = estimate(d, epsilon)
    for value in (result.capacity, result.low, result.high, *result.values.values(), *result.log10.values()):
        assert value is None or (math.isfinite(value) and value >= 0)
    assert epsilon < 1 or result.capacity is None


@pytest.mark.parametrize(("d", "epsilon"), [(0, 0.1), (64, 0), (64, -1), (64, math.nan), (math.nan, 0.1)])
def test_impossible_questions_are_refused(d, epsilon):
    with pytest.raises(RepcapError, match=r"^(d|epsilon) = "):
        estimate(d, epsilon)


def test_the_vocabulary_takes_its_share():
    assert shared_budget(1e6, 32000, tied=True) == 968000
    assert shared_budget(1e6, 32000, tied=False) == 936000
    assert shared_budget(1000, 32000, tied=True) == -31000
    with pytest.raises(RepcapError, match="vocabulary = -1"):
        shared_budget(1e6, -1, tied=True)
    with pytest.raises(RepcapError, match="capacity = nan"):
        shared_budget(math.nan, 10, tied=True)
