"""Random sparse inputs: the dimension at which linear probes, and decoders that are not linear, read them on average.

Each trial draws m random vectors in R^d, a support of k of them and random signs on it, x = sum_j z_j a_j, and asks whether
a decoder gets every entry of z within 1/2. What holds for most draws says nothing on the worst support and signs
of a given dictionary: for these see `linear_access`.

`python -m repcap_utils.sparse_recovery` computes the trials that data/sweeps/sparse_recovery.csv lacks.
"""

import logging
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from repcap_utils import __version__, paths, stores, sweep
from repcap_utils.checks import whole_number
from repcap_utils.errors import RepcapError

STORE = paths.SWEEPS / "sparse_recovery.csv"
LINEAR, MATCHING, BASIS = DECODERS = ("linear probes", "matching pursuit", "basis pursuit")
UNIT, NORMAL, SIGNS = DICTIONARIES = ("unit normal", "normal", "signs")
"""What the vectors are: normal entries scaled to unit length, normal entries of variance 1/d, or signs / sqrt(d)."""
ERROR = 0.5
"""An entry of z in {-1, 0, 1} is read when the decoder's value is nearer to it than this."""

_KEY = ("decoder", "dictionary", "m", "k", "d", "seed", "trials")


class Decoded(NamedTuple):
    """The estimate of z (m values), and whether the decoder came to its end."""

    z: np.ndarray
    converged: bool


class Recovery(NamedTuple):
    """Of so many trials, those with every entry read, and those (never among them) where the decoder did not converge."""

    trials: int
    successes: int
    not_converged: int


class HalfDimension(NamedTuple):
    """The dimension at which half of all trials succeed, with its 95 % interval."""

    d: float
    low: float
    high: float


def linear_probes(features: np.ndarray, x: np.ndarray) -> Decoded:
    """Each entry read by the feature's own vector: z_i = <a_i, x>."""
    return Decoded(features @ x, True)


def matching_pursuit(features: np.ndarray, x: np.ndarray, k: int) -> Decoded:
    """Orthogonal matching pursuit (scikit-learn): k features chosen one by one, fitted by least squares after each.

    It does not converge where a chosen feature depends linearly on the earlier ones.

    Raises:
        RepcapError: k is no whole number from 1 to the number of features.
    """
    k = whole_number("k", k, 1, len(features))
    from sklearn.linear_model import orthogonal_mp  # loaded late: it takes a second

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        z = orthogonal_mp(features.T, x, n_nonzero_coefs=k)
    return Decoded(z, not any(issubclass(warning.category, RuntimeWarning) for warning in caught))


def basis_pursuit(features: np.ndarray, x: np.ndarray) -> Decoded:
    """The z of least sum of magnitudes with sum_j z_j a_j = x, by linear programming (HiGHS); NaN without an optimum."""
    m = len(features)
    result = optimize.linprog(np.ones(2 * m), A_eq=np.hstack([features.T, -features.T]), b_eq=x, method="highs")
    if not result.success:
        return Decoded(np.full(m, np.nan), False)
    return Decoded(result.x[:m] - result.x[m:], True)


def simulate(decoder: str, m: int, k: int, d: int, *, trials: int, seed: int, dictionary: str = UNIT) -> Recovery:
    """Trials of one decoder, each with a dictionary, a support and signs of its own.

    Args:
        decoder: one of `DECODERS`.
        m: number of features.
        k: how many are active, with values +-1.
        d: dimension.
        trials: how many.
        seed: the generator is SeedSequence([seed, m, k, d]), the same for every decoder.
        dictionary: one of `DICTIONARIES`.

    Raises:
        RepcapError: an unknown decoder or dictionary, k not in 1 to m, d or trials below 1, a seed below 0.
    """
    for what, name, known in (("decoder", decoder, DECODERS), ("dictionary", dictionary, DICTIONARIES)):
        if name not in known:
            raise RepcapError(f"unknown {what} {name!r}; there are {', '.join(known)}")
    m, d, trials = (whole_number(name, value, 1) for name, value in (("m", m), ("d", d), ("trials", trials)))
    k, seed = whole_number("k", k, 1, m), whole_number("seed", seed, 0)
    generator = np.random.default_rng(np.random.SeedSequence([seed, m, k, d]))
    successes = not_converged = 0
    for _ in range(trials):
        features = _features(dictionary, m, d, generator)
        z = np.zeros(m)
        z[generator.choice(m, k, replace=False)] = generator.choice([-1.0, 1.0], k)
        found = _decoded(decoder, features, z @ features, k)
        not_converged += not found.converged
        successes += found.converged and bool(np.abs(found.z - z).max() < ERROR)
    return Recovery(trials, successes, not_converged)


def _features(dictionary: str, m: int, d: int, generator: np.random.Generator) -> np.ndarray:
    if dictionary == SIGNS:
        return generator.choice([-1.0, 1.0], (m, d)) / math.sqrt(d)
    features = generator.standard_normal((m, d))
    return features / (math.sqrt(d) if dictionary == NORMAL else np.linalg.norm(features, axis=1, keepdims=True))


def _decoded(decoder: str, features: np.ndarray, x: np.ndarray, k: int) -> Decoded:
    if decoder == MATCHING:
        return matching_pursuit(features, x, k)
    return basis_pursuit(features, x) if decoder == BASIS else linear_probes(features, x)


def half_dimension(d: ArrayLike, successes: ArrayLike, trials: ArrayLike) -> HalfDimension:
    """Logistic regression of success on ln d, by maximum likelihood; the interval is that of its Fisher information.

    Args:
        d: dimensions at which trials were made.
        successes, trials: counts at each.

    Raises:
        RepcapError: lists that are empty, differ in length or hold no counts; the share of successes does not rise with d
            from below one half to above it, or at once from none to all, where no slope can be fitted.
    """
    d, won, tried = (np.asarray(values, dtype=float) for values in (d, successes, trials))
    if not (d.ndim == 1 and len(d) and d.shape == won.shape == tried.shape):
        raise RepcapError(
            "d, successes and trials must be lists of one length, not empty; give one of each a dimension"
        )
    if not ((d > 0) & (d < np.inf) & (won >= 0) & (won <= tried) & (tried > 0) & (tried < np.inf)).all():
        raise RepcapError("give positive dimensions, and successes between 0 and the number of trials at each")
    share = won / tried
    if not (
        share.min() < 0.5 < share.max()
        and won @ np.log(d) / won.sum() > (tried - won) @ np.log(d) / (tried - won).sum()
    ):
        raise RepcapError(
            "successes do not rise with d through one half; make trials at smaller and at larger dimensions"
        )
    if d[won < tried].max() <= d[won > 0].min():
        raise RepcapError("all trials fail below one dimension and succeed above it; make trials at dimensions between")
    centre = np.log(d).mean()
    design = np.stack([np.ones_like(d), np.log(d) - centre], axis=1)

    def minus_likelihood(parameters: np.ndarray) -> float:
        logits = design @ parameters
        return -float(won @ special.log_expit(logits) + (tried - won) @ special.log_expit(-logits))

    def gradient(parameters: np.ndarray) -> np.ndarray:
        return design.T @ (tried * special.expit(design @ parameters) - won)

    level, slope = optimize.minimize(minus_likelihood, [0.0, 5.0], jac=gradient, method="BFGS").x
    expected = special.expit(design @ [level, slope])
    information = design.T @ (design * (tried * expected * (1 - expected))[:, None])
    direction = np.array([-1 / slope, level / slope**2])
    error = stats.norm.ppf(0.975) * np.sqrt(direction @ np.linalg.solve(information, direction))
    middle = centre - level / slope
    return HalfDimension(*np.exp([middle, middle - error, middle + error]).tolist())


def half_dimensions(table: pd.DataFrame) -> pd.DataFrame:
    """`half_dimension` of a store's rows, one row for each decoder, dictionary, m and k.

    Columns: these four, d, low, high, not_converged.
    """
    names = ["decoder", "dictionary", "m", "k"]
    return pd.DataFrame(
        [
            dict(zip(names, of, strict=True))
            | half_dimension(group.d, group.successes, group.trials)._asdict()
            | {"not_converged": int(group.not_converged.sum())}
            for of, group in table.groupby(names, sort=False)
        ]
    )


def cells() -> list[dict[str, object]]:
    """What the study simulates, m = 1000: linear probes and matching pursuit at each k from 2 to 32, basis pursuit at some.

    At those, matching pursuit reads all dictionaries, with more trials. Dimensions lie about a guess of the one at which
    half of the trials succeed.
    """
    some = (2, 4, 8, 16, 32)
    found = []
    for k in range(2, 33):
        found += _about(LINEAR, UNIT, k, 46.0301 * k, trials=50, seed=0)
        found += _about(MATCHING, UNIT, k, 3.0 + 7.8 * k, trials=50, seed=0)
        if k in some:
            found += _about(BASIS, UNIT, k, 4.0 + 4.8 * k, trials=30, seed=0)
    for k in some:
        for dictionary in DICTIONARIES:
            found += _about(MATCHING, dictionary, k, 3.0 + 7.8 * k, trials=200, seed=1)
    return found


def _about(decoder: str, dictionary: str, k: int, middle: float, *, trials: int, seed: int) -> list[dict[str, object]]:
    cell = {"decoder": decoder, "dictionary": dictionary, "m": 1000, "k": k}
    dimensions = dict.fromkeys(round(middle * factor) for factor in (0.75, 0.88, 1.0, 1.14, 1.33))
    return [cell | {"d": d, "seed": seed, "trials": trials} for d in dimensions]


def read(store: Path = STORE) -> pd.DataFrame:
    """The simulated cells, one a row.

    Raises:
        RepcapError: the file is no such table.
    """
    return stores.read(store, _KEY)


def run(wanted: Iterable[Mapping[str, object]], store: Path = STORE) -> pd.DataFrame:
    """Simulate the cells that a store lacks, each kept as it finishes; return the rows of the store."""
    done = set(read(store)[list(_KEY)].itertuples(index=False, name=None))
    for cell in wanted:
        if tuple(cell[name] for name in _KEY) in done:
            continue
        found = simulate(**cell)
        row = dict(cell) | {"successes": found.successes, "not_converged": found.not_converged}
        stores.keep(store, [row | {"version": __version__, "commit": sweep.commit()}], by=_KEY)
        logging.info("%s: %d of %d", ", ".join(str(cell[name]) for name in _KEY), found.successes, found.trials)
    return read(store)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(cells())
