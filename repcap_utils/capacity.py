"""How many near-orthogonal directions fit: three formulas, their inverses, their fits and what they extrapolate.

All three are one law with different free constants, eps^2 = C L^b / d^c (arXiv 2606.02765, sec. 3.2 and 3.3):

| form | L | free constants |
| --- | --- | --- |
| `JL` | ln k | C |
| `RATIO` | ln(k / d) | C |
| `FULL` | ln(k^a / d) | C, a, b, c |

`RATIO` and `FULL` are 0 where k <= d, because up to d directions can be exactly orthogonal.
k is a number of directions, d the dimension (d_model), eps the coherence, all without unit; logarithms are natural
unless a name says log10.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from repcap_utils.checks import broadcast, numbers, whole_number
from repcap_utils.errors import RepcapError

Weighting = Literal["epsilon", "log"]
Resample = Literal["cells", "d"]

LARGEST_LOG10 = 308.25  # 10 to this power still is a float, whatever the rounding
_TOLERANCE = 1e-6  # how far above 1 rounding may lift a measured cosine
_LN10 = float(np.log(10))


def check_cells(cells: pd.DataFrame, *, rows: int = 1) -> pd.DataFrame:
    """The columns k, d and epsilon of `cells` as float64, with a fresh index.

    Raises:
        RepcapError: a column is missing or not numeric, a value is not finite or impossible (k < 2, d < 1,
            epsilon outside 0..1), or there are fewer than `rows` rows.
    """
    columns = ["k", "d", "epsilon"]
    missing = [name for name in columns if name not in cells]
    if missing:
        raise RepcapError(f"cells: missing column(s) {', '.join(missing)}; the columns needed are k, d and epsilon")
    try:
        table = cells[columns].astype(float).reset_index(drop=True)
    except (TypeError, ValueError) as error:
        raise RepcapError(f"cells: the columns k, d and epsilon must be numbers ({error})") from error
    if len(table) < rows:
        raise RepcapError(f"cells: {len(table)} row(s), at least {rows} are needed")
    good = {
        "k": table["k"] >= 2,
        "d": table["d"] >= 1,
        "epsilon": table["epsilon"].between(0, 1 + _TOLERANCE),
    }
    for name, allowed in {"k": "2 or more", "d": "1 or more", "epsilon": "between 0 and 1"}.items():
        bad = ~(good[name] & np.isfinite(table[name]))
        if bad.any():
            row = int(bad.idxmax())
            raise RepcapError(f"cells: {name} = {table[name][row]} in row {row}; it must be finite and {allowed}")
    return table


@dataclass(frozen=True)
class Domain:
    """The cells that a curve was fitted on: the range of k at each d.

    Attributes:
        ranges: one (d, smallest k, largest k) for each d, ascending.
    """

    ranges: tuple[tuple[float, float, float], ...]

    @classmethod
    def of(cls, cells: pd.DataFrame) -> "Domain":
        """The domain of a table with columns k and d."""
        k = cells.groupby("d")["k"].agg(["min", "max"])
        return cls(tuple((float(d), float(low), float(high)) for d, low, high in k.itertuples()))

    @property
    def d(self) -> tuple[float, float]:
        """Smallest and largest d."""
        return self.ranges[0][0], self.ranges[-1][0]

    @property
    def k(self) -> tuple[float, float]:
        """Smallest and largest k."""
        return min(low for _, low, _ in self.ranges), max(high for _, _, high in self.ranges)

    def ratios(self, d: float) -> tuple[float, float, float]:
        """The fitted d nearest to `d` (in ratio), and the smallest and largest k / d there."""
        nearest, low, high = min(self.ranges, key=lambda row: abs(np.log(row[0] / d)))
        return nearest, low / nearest, high / nearest


@dataclass(frozen=True)
class Form:
    """One of the three formulas; use the instances `JL`, `RATIO` and `FULL`.

    Attributes:
        name: "jl", "ratio" or "full".
        formula: the formula as text.
        published: the constants that the paper fits on its optimised cells, used where `params` is None.
        subtracts_dimension: whether L is ln(k^a / d), else ln k^a.
    """

    name: str
    formula: str
    published: Mapping[str, float]
    subtracts_dimension: bool

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the free constants."""
        return tuple(self.published)

    def epsilon(self, k: ArrayLike, d: ArrayLike, params: Mapping[str, float] | None = None) -> np.ndarray | float:
        """The coherence that the formula gives k directions in d dimensions; `k` and `d` broadcast.

        0 where k <= d for `RATIO` and `FULL`. A value above 1 is possible and means that the formula does not apply.

        Raises:
            RepcapError: k or d below 1 or not finite; wrong constants.
        """
        k, d = broadcast(k=(k, 1), d=(d, 1))
        scale, a, b, c = self._constants(params)
        length = self._length(k, d, a)
        positive = length > 0 if not self.subtracts_dimension else (length > 0) & (k > d)
        log = np.log(scale) + b * np.log(np.where(positive, length, 1)) - c * np.log(d)
        if np.any(log > 1400):
            raise RepcapError(
                f"{self.name}: epsilon at k = {k.max():g}, d = {d.max():g} has no float; check the constants"
            )
        return np.where(positive, np.exp(log / 2), 0.0)[()]

    def log10_capacity(
        self, d: ArrayLike, epsilon: ArrayLike, params: Mapping[str, float] | None = None
    ) -> np.ndarray | float:
        """log10 of the k at which the formula reaches `epsilon`; `d` and `epsilon` broadcast.

        The inverse of `epsilon` as the paper uses it (arXiv 2606.02765, sec. 3.4). For `FULL` it can fall to d or
        below, where `epsilon` is 0: there the number says only that the formula gives nothing above d.

        Raises:
            RepcapError: d below 1, epsilon not positive, or either not finite; wrong constants; a result that no
                float holds.
        """
        d, epsilon = broadcast(d=(d, 1), epsilon=(epsilon, 0))
        if (epsilon == 0).any():
            raise RepcapError("epsilon = 0; it must be positive")
        scale, a, b, c = self._constants(params)
        log_length = (c * np.log(d) + 2 * np.log(epsilon) - np.log(scale)) / b
        if np.any(log_length > 700):
            raise RepcapError(f"{self.name}: the capacity at d = {d.max():g}, epsilon = {epsilon.max():g} has no float")
        offset = np.log(d) if self.subtracts_dimension else 0.0
        return ((offset + np.exp(log_length)) / (a * _LN10))[()]

    def capacity(
        self, d: ArrayLike, epsilon: ArrayLike, params: Mapping[str, float] | None = None
    ) -> np.ndarray | float:
        """10 to the power `log10_capacity`: the number of directions, inf above 1.7e308."""
        return power10(self.log10_capacity(d, epsilon, params))

    def fit(
        self,
        cells: pd.DataFrame,
        *,
        weighting: Weighting = "epsilon",
        bootstrap: int = 0,
        resample: Resample = "cells",
        seed: int = 0,
        exclude_degenerate: bool = False,
    ) -> "Fit":
        """Least-squares constants for a table of cells with columns k, d and epsilon (other columns are ignored).

        Args:
            weighting: "epsilon", unweighted least squares on epsilon (as published, arXiv 2606.02765, sec. 3.3), which
                large coherences decide; or "log", least squares on ln epsilon, where every cell has the same say. "log"
                leaves out the cells at which the form is 0 (k <= d for `RATIO` and `FULL`).
            bootstrap: number of resamples for 95 % percentile intervals; 0 for none.
            resample: what is drawn with replacement: single "cells", or all cells of a "d" together, which does not
                take neighbouring cells for independent ones.
            seed: seed of the resampling.
            exclude_degenerate: leave out the cells k <= d, both from the fit and from the measures of quality.

        Raises:
            RepcapError: unusable cells (see `check_cells`), too few or too similar ones for this form's constants,
                "log" with an epsilon of 0, no convergence, an unknown option.
        """
        _choice("weighting", weighting, ("epsilon", "log"))
        _choice("resample", resample, ("cells", "d"))
        bootstrap, seed = whole_number("bootstrap", bootstrap, 0), whole_number("seed", seed, 0)
        table = check_cells(cells)
        degenerate = table["k"] <= table["d"]
        if exclude_degenerate or (weighting == "log" and self.subtracts_dimension):
            table = table[~degenerate].reset_index(drop=True)
        if table.empty:
            raise RepcapError("cells: none has k > d, so nothing is left to fit; add cells above the dimension")
        params = self._solve(table, weighting)
        intervals = self._intervals(table, weighting, bootstrap, resample, seed) if bootstrap else {}
        return Fit(
            name=self.name,
            form=self,
            params=params,
            domain=Domain.of(table),
            weighting=weighting,
            intervals=intervals,
            cells=table,
            **_quality(table["epsilon"].to_numpy(), self.epsilon(table["k"], table["d"], params)),
        )

    def _constants(self, params: Mapping[str, float] | None) -> tuple[float, float, float, float]:
        values = dict(self.published if params is None else params)
        if set(values) != set(self.parameters):
            raise RepcapError(f"{self.name}: constants {sorted(values)}; it takes {', '.join(self.parameters)}")
        c, a, b, power = (float(values.get(name, 1.0)) for name in ("C", "a", "b", "c"))
        if not (np.isfinite([c, a, b, power]).all() and c > 0 and a > 0 and b > 0):
            raise RepcapError(f"{self.name}: constants {values}; all must be finite and C, a and b positive")
        return c, a, b, power

    def _length(self, k: np.ndarray, d: np.ndarray, a: float) -> np.ndarray:
        return a * np.log(k) - (np.log(d) if self.subtracts_dimension else 0.0)

    def _solve(self, table: pd.DataFrame, weighting: Weighting) -> dict[str, float]:
        # Where the form is 0 whatever its constants, a cell cannot influence the fit.
        used = table[table["k"] > table["d"]] if self.subtracts_dimension else table
        k, d, epsilon = (used[name].to_numpy() for name in ("k", "d", "epsilon"))
        self._check_identifiable(used)
        if weighting == "log" and not (epsilon > 0).all():
            raise RepcapError('weighting = "log": an epsilon is 0; leave that cell out or use weighting = "epsilon"')
        scale = _scale(self.epsilon(k, d, dict.fromkeys(self.parameters, 1.0)), epsilon, weighting)
        if len(self.parameters) == 1:
            return {"C": scale}
        return _solve_full(np.log(k), np.log(d), epsilon, weighting, scale)

    def _check_identifiable(self, used: pd.DataFrame) -> None:
        count = len(self.parameters)
        distinct = len(used[["k", "d"]].drop_duplicates())
        if distinct < count + 1:
            raise RepcapError(f"{self.name}: {distinct} distinct usable cell(s); {count + 1} are needed")
        if count > 1 and (used["d"].nunique() < 2 or used["k"].nunique() < 2):
            raise RepcapError(f"{self.name}: all cells have the same k or the same d; its constants need several")
        if not (used["epsilon"] > 0).any():
            raise RepcapError(f"{self.name}: epsilon is 0 in every usable cell; there is nothing to fit")

    def _intervals(
        self, table: pd.DataFrame, weighting: Weighting, count: int, resample: Resample, seed: int
    ) -> dict[str, tuple[float, float]]:
        rng = np.random.default_rng(np.random.SeedSequence([seed, count]))
        groups = [rows for _, rows in table.groupby("d")] if resample == "d" else []
        draws = []
        for _ in range(count):
            if groups:
                sample = pd.concat([groups[i] for i in rng.integers(len(groups), size=len(groups))])
            else:
                sample = table.iloc[rng.integers(len(table), size=len(table))]
            try:
                draws.append(list(self._solve(sample, weighting).values()))
            except RepcapError:  # a resample of too few distinct cells says nothing about the constants
                continue
        if len(draws) < max(1, count // 2):
            raise RepcapError(f"{self.name}: only {len(draws)} of {count} resamples could be fitted; add cells or d")
        low, high = np.percentile(draws, [2.5, 97.5], axis=0)
        return {name: (float(low[i]), float(high[i])) for i, name in enumerate(self.parameters)}


@dataclass(frozen=True)
class Curve:
    """A form with its constants and the cells that these come from.

    Attributes:
        name: a short name, unique among the curves that are compared.
        form: the formula.
        params: its constants by name.
        domain: the cells fitted, or None for constants that come from a proof.
    """

    name: str
    form: Form
    params: Mapping[str, float]
    domain: Domain | None = field(repr=False)

    def epsilon(self, k: ArrayLike, d: ArrayLike) -> np.ndarray | float:
        """`Form.epsilon` with these constants."""
        return self.form.epsilon(k, d, self.params)

    def log10_capacity(self, d: ArrayLike, epsilon: ArrayLike) -> np.ndarray | float:
        """`Form.log10_capacity` with these constants."""
        return self.form.log10_capacity(d, epsilon, self.params)

    def capacity(self, d: ArrayLike, epsilon: ArrayLike) -> np.ndarray | float:
        """`Form.capacity` with these constants."""
        return self.form.capacity(d, epsilon, self.params)


@dataclass(frozen=True)
class Fit(Curve):
    """A fitted curve and how well it fits, measured on epsilon over its `cells` whatever the weighting.

    Attributes:
        weighting: "epsilon" or "log".
        r2: 1 - sum of squared residuals / sum of squares about the mean.
        mape: mean of abs(residual) / epsilon in percent, over the cells with epsilon > 0.
        nrmse: root mean square of the residuals in percent of the range (largest minus smallest) of epsilon. It is
            this normalisation that gives all published values (arXiv 2606.02765, sec. 3.2 and 3.3).
        n: number of cells.
        intervals: 95 % percentile interval of each constant; empty without bootstrap.
        cells: the table that was fitted: columns k, d, epsilon.
    """

    weighting: Weighting
    r2: float
    mape: float
    nrmse: float
    n: int
    intervals: Mapping[str, tuple[float, float]]
    cells: pd.DataFrame = field(repr=False, compare=False)

    @property
    def residuals(self) -> pd.DataFrame:
        """Columns k, d, epsilon, fitted, residual (epsilon - fitted) and ape (percent of epsilon, NaN at epsilon 0)."""
        fitted = self.epsilon(self.cells["k"], self.cells["d"])
        residual = self.cells["epsilon"] - fitted
        ape = 100 * residual.abs() / self.cells["epsilon"].where(self.cells["epsilon"] > 0)
        return self.cells.assign(fitted=fitted, residual=residual, ape=ape)

    def leave_one_d_out(self) -> pd.DataFrame:
        """Refit without each d in turn and predict the cells left out: how far the form carries to a new dimension.

        Returns:
            One row for each d: d, n (cells held out), mape and max_ape (mean and largest abs(residual) / epsilon of
            the held-out cells with epsilon > 0, percent; NaN where there is none).

        Raises:
            RepcapError: the cells that remain do not determine the constants.
        """
        rows = []
        for d, held in self.cells.groupby("d"):
            rest = self.cells[self.cells["d"] != d]
            if rest.empty:
                raise RepcapError(f"{self.name}: the cells have a single d = {d:g}; leaving it out needs at least two")
            params = self.form._solve(rest, self.weighting)
            held = held[held["epsilon"] > 0]
            error = 100 * (self.form.epsilon(held["k"], held["d"], params) / held["epsilon"] - 1).abs()
            rows.append({"d": int(d), "n": len(held), "mape": error.mean(), "max_ape": error.max()})
        return pd.DataFrame(rows)


JL = Form("jl", "eps = sqrt(C ln k / d)", {"C": 0.707}, subtracts_dimension=False)
RATIO = Form("ratio", "eps = sqrt(C ln(k / d) / d)", {"C": 1.2934}, subtracts_dimension=True)
FULL = Form(
    "full",
    "eps = sqrt(C ln(k^a / d)^b / d^c)",
    {"C": 0.45809, "a": 1.06680, "b": 1.44739, "c": 0.97197},
    subtracts_dimension=True,
)
FORMS: dict[str, Form] = {form.name: form for form in (JL, RATIO, FULL)}

_OPTIMISED_D = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096)
_OPTIMISED = Domain(tuple((float(d), 2000.0, 32000.0) for d in _OPTIMISED_D))
_RANDOM = Domain(tuple((float(d), 2000.0, 32000.0) for d in range(256, 4097, 256)))

PUBLISHED: dict[str, Curve] = {
    "full": Curve("full", FULL, FULL.published, _OPTIMISED),
    "ratio": Curve("ratio", RATIO, RATIO.published, _OPTIMISED),
    "jl": Curve("jl", JL, JL.published, _OPTIMISED),
    "jl_random": Curve("jl_random", JL, {"C": 3.029}, _RANDOM),
    "jl_proven": Curve("jl_proven", JL, {"C": 8.0}, None),
}
"""The published constants (arXiv 2606.02765, sec. 3.2 and 3.3) with the grids that they were fitted on.

"full", "ratio" and "jl" describe the 166 optimised packings, "jl_random" the smallest coherence of repeated random
draws, "jl_proven" the best proven constant of the Johnson-Lindenstrauss lemma.
"""


@dataclass(frozen=True)
class CapacityEstimate:
    """A capacity with the spread over the formulas and what is extrapolated.

    Every number is None at epsilon >= 1. Numbers of directions are None above 1.7e308, where only log10 is left.

    Attributes:
        d, epsilon: the question.
        log10: log10 of the number of directions by the name of the curve.
        log10_point: by the published `FULL` form (arXiv 2606.02765, sec. 3.4).
        log10_low, log10_high: extremes over all `RATIO` and `FULL` curves. The one-constant Johnson-Lindenstrauss
            curves are listed in `log10` but not counted here: they describe random vectors or a proof, and the
            optimised packings reject that form.
        flags: what the numbers do not rest on, one sentence each.
    """

    d: float
    epsilon: float
    log10: Mapping[str, float | None]
    log10_point: float | None
    log10_low: float | None
    log10_high: float | None
    flags: tuple[str, ...]

    @property
    def values(self) -> dict[str, float | None]:
        """Number of directions by the name of the curve."""
        return {name: _directions(value) for name, value in self.log10.items()}

    @property
    def capacity(self) -> float | None:
        """Number of directions by the published `FULL` form."""
        return _directions(self.log10_point)

    @property
    def low(self) -> float | None:
        """Smallest number of directions over the `RATIO` and `FULL` curves."""
        return _directions(self.log10_low)

    @property
    def high(self) -> float | None:
        """Largest number of directions over the `RATIO` and `FULL` curves."""
        return _directions(self.log10_high)

    @property
    def facts(self) -> dict[str, object]:
        """What a reader is told, by name, as JSON can hold it."""
        return {
            "capacity": self.capacity,
            "capacity_low": self.low,
            "capacity_high": self.high,
            "log10_capacity": self.log10_point,
            "log10_by_form": dict(self.log10),
            "flags": list(self.flags),
        }


def estimate(d: float, epsilon: float, *, fits: Mapping[str, Curve] | None = None) -> CapacityEstimate:
    """How many directions of coherence `epsilon` the formulas give in `d` dimensions, and how far they extrapolate.

    Args:
        d: dimension, usually d_model.
        epsilon: accepted absolute cosine.
        fits: further curves by name, for instance refits on other cells; they widen the interval.

    Raises:
        RepcapError: d below 1, epsilon not positive, either not finite, or a name that `PUBLISHED` already has.
    """
    d, epsilon = float(numbers("d", d, 1)), float(numbers("epsilon", epsilon))
    if epsilon <= 0:
        raise RepcapError(f"epsilon = {epsilon:g}; it must be positive")
    taken = sorted(set(fits or {}) & set(PUBLISHED))
    if taken:
        raise RepcapError(f"fits: {', '.join(taken)} is the name of published constants; choose another")
    curves = PUBLISHED | dict(fits or {})
    if epsilon >= 1:
        flags = ("epsilon >= 1: cosines this large are no constraint", *_dimension_flags(d))
        return CapacityEstimate(d, epsilon, dict.fromkeys(curves), None, None, None, flags)
    log10 = {name: float(curve.log10_capacity(d, epsilon)) for name, curve in curves.items()}
    spread = [log10[name] for name, curve in curves.items() if curve.form.subtracts_dimension]
    flags = (*_dimension_flags(d), *_ratio_flags(d, log10["full"]))
    return CapacityEstimate(d, epsilon, log10, log10["full"], min(spread), max(spread), flags)


def shared_budget(capacity: float, vocabulary: int, tied: bool) -> float:
    """Directions left for features once the token vectors have theirs (arXiv 2606.02765, sec. 3.4).

    capacity - V with tied embeddings, capacity - 2V with an unembedding of its own. Negative when the vocabulary
    alone needs more directions than there are.

    Raises:
        RepcapError: a negative or non-finite capacity or vocabulary.
    """
    for name, value in (("capacity", capacity), ("vocabulary", vocabulary)):
        if not (np.isfinite(value) and value >= 0):
            raise RepcapError(f"{name} = {value}; it must be finite and not negative")
    return float(capacity) - (1 if tied else 2) * vocabulary


def _dimension_flags(d: float) -> tuple[str, ...]:
    low, high = _OPTIMISED.d
    return () if low <= d <= high else (f"d outside the fitted data ({d:g} is not in {low:g} to {high:g})",)


def _ratio_flags(d: float, log10_k: float) -> tuple[str, ...]:
    flags = []
    nearest, low, high = _OPTIMISED.ratios(d)
    log10_ratio = log10_k - np.log10(d)
    if not np.log10(low) <= log10_ratio <= np.log10(high):
        ratio = f"{10**log10_ratio:.2g}" if log10_ratio < LARGEST_LOG10 else f"10^{log10_ratio:.0f}"
        bound = f"> {high:.2g}" if log10_ratio > np.log10(high) else f"< {low:.2g}"
        flags.append(f"k/d outside the fitted data ({ratio} {bound} at the nearest d, {nearest:g})")
    if log10_ratio <= 0:
        flags.append("k <= d: not above the dimension (the formula's floor)")
    if log10_k > LARGEST_LOG10:
        flags.append("k above 1.7e308: given as log10 only")
    return tuple(flags)


def _directions(log10: float | None) -> float | None:
    return None if log10 is None or log10 >= LARGEST_LOG10 else float(10.0**log10)


def power10(log10: ArrayLike) -> np.ndarray | float:
    """10 to the power `log10`, inf above 1.7e308."""
    log10 = np.asarray(log10)
    fits = log10 < LARGEST_LOG10
    return np.where(fits, 10.0 ** np.where(fits, log10, 0.0), np.inf)[()]


def _scale(shape: np.ndarray, epsilon: np.ndarray, weighting: Weighting) -> float:
    """The best C of eps = sqrt(C) * shape, in closed form."""
    if weighting == "log":
        return float(np.exp(np.mean(2 * np.log(epsilon / shape))))
    return float((shape @ epsilon / (shape @ shape)) ** 2)


def _solve_full(
    log_k: np.ndarray, log_d: np.ndarray, epsilon: np.ndarray, weighting: Weighting, scale: float
) -> dict[str, float]:
    # Unconstrained parameters ln C and ln(a - floor): below the floor L would be negative in some cell.
    floor = float(np.max(log_d / log_k))

    def log_fitted(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        length = (floor + np.exp(np.clip(theta[1], -300, 300))) * log_k - log_d
        length = np.maximum(length, 1e-300)
        log = (theta[0] + theta[2] * np.log(length) - theta[3] * log_d) / 2
        return np.clip(log, -300, 300), length

    def residual(theta: np.ndarray) -> np.ndarray:
        log, _ = log_fitted(theta)
        return log - np.log(epsilon) if weighting == "log" else np.exp(log) - epsilon

    def jacobian(theta: np.ndarray) -> np.ndarray:
        log, length = log_fitted(theta)
        by_a = theta[2] * (length + log_d - floor * log_k) / length  # chain rule: d a / d theta_1 = a - floor
        slopes = np.stack([np.ones_like(log), by_a, np.log(length), -log_d], axis=1) / 2
        return slopes if weighting == "log" else slopes * np.exp(log)[:, None]

    start = np.array([np.log(scale), np.log(1.05 - floor), 1.0, 1.0])
    found = least_squares(
        residual, start, jacobian, method="lm", x_scale="jac", xtol=1e-13, ftol=1e-13, gtol=1e-13, max_nfev=2000
    )
    a = floor + np.exp(found.x[1])
    if found.status <= 0 or a > 1e3 or found.x[2] <= 0:
        raise RepcapError(
            f"full: no least-squares constants for {len(epsilon)} cells (a = {a:.3g}, b = {found.x[2]:.3g}); "
            "the cells do not follow this form, use jl or ratio"
        )
    return {"C": float(np.exp(found.x[0])), "a": float(a), "b": float(found.x[2]), "c": float(found.x[3])}


def _quality(epsilon: np.ndarray, fitted: np.ndarray) -> dict[str, float]:
    residual = epsilon - fitted
    spread = np.ptp(epsilon)
    if spread == 0:
        raise RepcapError(f"cells: epsilon is {epsilon[0]:g} in all of them; quality of fit needs different values")
    above = epsilon > 0
    return {
        "r2": float(1 - np.sum(residual**2) / np.sum((epsilon - epsilon.mean()) ** 2)),
        "mape": float(100 * np.mean(np.abs(residual[above]) / epsilon[above])),
        "nrmse": float(100 * np.sqrt(np.mean(residual**2)) / spread),
        "n": len(epsilon),
    }


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RepcapError(f"{name} = {value!r}; it must be one of {', '.join(allowed)}")
