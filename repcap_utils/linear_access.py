"""Linear access: how many of m features, at most k of them active at once, linear probes can read off d neurons.

A layer stores z in R^m, of which at most k entries are not zero, as x = sum_j z_j a_j, and reads entry i as <b_i, x>
(arXiv 2602.11246). Matrices hold one vector a row, as everywhere in this package: `features` is m x d with the rows a_j,
`probes` m x d with the rows b_i. M = probes @ features.T takes z to what is read, so row i errs by (M z - z)_i, and the
worst case over z depends on M_ii and on the largest entries beside it only.

Random sparse inputs and decoders that are not linear are in `sparse_recovery`.
"""

import hashlib
import math
import multiprocessing
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import integrate, linalg, optimize, sparse, special
from torch import Tensor

from repcap_utils import __version__, embeddings, isotropy, paths, similarity, stores, sweep, tokens
from repcap_utils.checks import whole_number
from repcap_utils.errors import RepcapError
from repcap_utils.similarity import Matrix

STORE = paths.SURVEY / "linear_access.csv"
TOKENS = paths.SURVEY / "linear_access_tokens.csv"
VARIANTS = ((False, 0), (True, 0), (True, 16))
"""What of a real embedding is measured: as stored, without its mean row, and without 16 principal directions too."""

DEPTH = 16
"""Largest k by default: that many of the largest entries are kept for each row."""
INPUTS = ("signed", "nonnegative")
"""Where the entries of z lie: [-1, 1] or [0, 1]."""
DUALITY_GAP = 1e-9
"""Largest difference between the error of a best probe and its dual bound that is accepted."""

_SCRATCH_BYTES = 2**27
_SCANNED_POWERS = 10_000
_LARGEST_COUNT = 10**300
_STATE_FORMAT = 2
_RANKED_KS, _RANKED = (1, 4, 16), 10


class WorstCase(NamedTuple):
    """The largest error of any feature, and which feature has it (a row number of the matrix that was passed)."""

    error: float
    row: int


@dataclass(frozen=True, eq=False)
class Interference:
    """What each probe takes up from its own feature and from the others: the rows of M = probes @ features.T.

    Attributes:
        gain: M_ii, m values.
        positive: the largest positive entries of each row beside the diagonal, m x K, descending, zeros where there are
            fewer.
        negative: the magnitudes of the most negative ones, likewise.
        rows: the row number of each feature in the matrix that was passed.
        zero_rows: rows of that matrix that were left out because they have no direction.
    """

    gain: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    rows: np.ndarray
    zero_rows: int = 0

    def __len__(self) -> int:
        return len(self.gain)

    @property
    def depth(self) -> int:
        """The largest k that can be asked for."""
        return self.positive.shape[1]

    def up_to(self, k: int) -> "Interference":
        """The same with a `depth` of k at most."""
        return replace(self, positive=self.positive[:, :k], negative=self.negative[:, :k])

    def errors(self, k: int, inputs: str = "signed") -> np.ndarray:
        """The worst-case error of each feature (m values) over all z with at most k entries that are not zero.

        With y_1 >= y_2 >= ... the magnitudes beside the diagonal of a row and T_k = y_1 + ... + y_k it is
        max(|M_ii - 1| + T_(k-1), T_k) on [-1, 1]^m: either z_i = +-1 takes one of the k places or it does not, each other
        place costs at most its magnitude, and signs can be chosen so that all add up. On [0, 1]^m no sign can be chosen and
        the sums T^+, T^- of the positive and of the negative entries stand apart:
        max(T_k^+, T_k^-, (M_ii - 1)^+ + T_(k-1)^+, (1 - M_ii)^+ + T_(k-1)^-).

        Raises:
            RepcapError: k not in 1 to `depth`, or unknown inputs.
        """
        k = self._checked(k)
        if inputs == "signed":
            total = self._sums["both"]
            return np.maximum(np.abs(self.gain - 1) + total[:, k - 1], total[:, k])
        if inputs != "nonnegative":
            raise RepcapError(f"unknown inputs {inputs!r}; there are {', '.join(INPUTS)}")
        up, down = self._sums["positive"], self._sums["negative"]
        with_own = np.maximum(
            np.maximum(self.gain - 1, 0) + up[:, k - 1], np.maximum(1 - self.gain, 0) + down[:, k - 1]
        )
        return np.maximum(with_own, np.maximum(up[:, k], down[:, k]))

    def margins(self, k: int) -> np.ndarray:
        """How far each feature's reading with z_i = 1 stays above that with z_i = 0 (m values), z in {0, 1}^m.

        M_ii - T_(k-1)^- - T_k^+: the lowest reading with feature i among at most k active ones less the highest without it.
        A threshold reads the feature without error just where this is positive.

        Raises:
            RepcapError: k not in 1 to `depth`.
        """
        k = self._checked(k)
        return self.gain - self._sums["negative"][:, k - 1] - self._sums["positive"][:, k]

    def worst_case(self, k: int, inputs: str = "signed") -> WorstCase:
        """E_k: the largest of the `errors`, and the feature that has it.

        Raises:
            RepcapError: see `errors`.
        """
        errors = self.errors(k, inputs)
        worst = int(errors.argmax())
        return WorstCase(float(errors[worst]), int(self.rows[worst]))

    def usable_sparsity(self, error: float, inputs: str = "signed") -> np.ndarray:
        """The largest k up to `depth` at which each feature's error stays below `error` (m whole numbers); 0 for none.

        The smallest of them is what all features together allow.

        Raises:
            RepcapError: see `errors`; an error that is not positive or not finite.
        """
        _check_error(error)
        # errors grow with k, so counting those below is finding the last one
        return sum((self.errors(k, inputs) < error).astype(int) for k in range(1, self.depth + 1))

    @cached_property
    def _sums(self) -> dict[str, np.ndarray]:
        """T_0 .. T_K of each row (m x (K + 1), float64), of both signs and of each alone."""
        both = np.concatenate([self.positive, self.negative], axis=1)
        both = -np.sort(-both, axis=1)[:, : self.depth]
        parts = {"both": both, "positive": self.positive, "negative": self.negative}
        return {
            name: np.pad(np.cumsum(part, axis=1, dtype=np.float64), ((0, 0), (1, 0))) for name, part in parts.items()
        }

    def _checked(self, k: int) -> int:
        k = whole_number("k", k, 1)
        if k > len(self):
            raise RepcapError(f"k = {k}: no more than the m = {len(self)} features there are can be active")
        if k > self.depth:
            raise RepcapError(f"k = {k}: only the {self.depth} largest entries of each row are kept; raise k_max")
        return k


# --- exact worst case -------------------------------------------------------------------------------------------------


def interference(features: Matrix, probes: Matrix | None = None, k_max: int = DEPTH) -> Interference:
    """The rows of M = probes @ features.T, in blocks of rows: scratch of about 128 MB besides the two matrices.

    Args:
        features: m x d, not normalised here.
        probes: m x d; None reads each feature by its own vector.
        k_max: the largest k to be asked for; no more than m are kept.

    Raises:
        RepcapError: shapes that differ, a feature or probe that is zero or not finite (the first is named), products that
            overflow, k_max below 1.

    Float64 input gives sums good to rounding in float64; shorter types are multiplied in float32.
    """
    a = _without_zero_rows("features", features)
    b = a if probes is None else _without_zero_rows("probes", probes)
    if a.shape != b.shape:
        raise RepcapError(
            f"features {tuple(a.shape)} and probes {tuple(b.shape)} differ in shape; each feature needs one"
        )
    depth = _depth(k_max, len(a))
    exact = torch.float64 in (a.dtype, b.dtype)
    a, b = (matrix.to(torch.float64 if exact else torch.float32) for matrix in (a, b))
    step = max(1, _SCRATCH_BYTES // (4 * a.element_size() * len(a)))
    gain, positive, negative = [], [], []
    for start in range(0, len(a), step):
        block = b[start : start + step] @ a.T
        if not torch.isfinite(block).all():
            raise RepcapError("products of features and probes overflow; rescale the features")
        own = block.diagonal(start)
        gain.append(own.clone())
        own.zero_()
        positive.append(_largest(block, depth))
        negative.append(_largest(block.neg_(), depth))
    parts = (torch.cat(part).cpu().numpy() for part in (gain, positive, negative))
    return Interference(*parts, rows=np.arange(len(a)))


def embedding_interference(
    weight: Matrix,
    k_max: int = DEPTH,
    *,
    centre: bool = False,
    components: int = 0,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    device: str | torch.device | None = None,
    tile: int | None = None,
) -> Interference:
    """The rows of the Gram matrix of an embedding's unit rows (V x d), each row read by itself, never V x V.

    Tiles of the upper triangle serve both of their rows and columns. Each row keeps its largest entries so far, and only
    those rows of a tile are searched whose extreme entry exceeds the least of them. Zero rows are left out and counted.
    Products are float32 (float64 for float64 input): a sum of k cosines is good to about k 1e-7.

    Args:
        weight: V x d.
        k_max: the largest k to be asked for.
        centre, components: subtract the mean row, project out principal directions first (`isotropy`).
        folder: where to keep the state after each block of rows, so that a run that was killed goes on and a finished one
            is read back, for a smaller k_max too; None keeps nothing.
        progress: called after each block of rows with the pairs done and the pairs in all.
        device: where to compute; None is where `weight` lies.
        tile: rows of a tile; None chooses.

    Raises:
        RepcapError: see `similarity.unit_rows` and `isotropy.remove_common_directions`; fewer than two rows with a
            direction; k_max below 1; a state that cannot be read or written.
    """
    matrix = similarity.as_matrix(weight, device)
    path = None if folder is None else folder / f"{_digest(matrix, centre, components)}-{k_max}.npz"
    if centre or components:
        matrix = isotropy.remove_common_directions(matrix, components, centre=centre)
    rows = similarity.unit_rows(matrix)
    if len(rows) < 2:
        raise RepcapError(f"{len(rows)} rows with a direction; interference needs two or more")
    depth = _depth(k_max, len(rows))
    state = _State.start(rows, depth) if path is None else _State.find(path, rows, depth)
    for i, j, a, b in similarity.upper_tiles(rows, tile, first=state.done):
        cosines = a @ b.T
        if i == j:
            cosines.fill_diagonal_(0.0)
        else:
            state.add(j, cosines.T)
        state.add(i, cosines)
        if j + len(b) == len(rows):
            state.done = i + len(a)
            if path is not None:
                state.save(path)
            if progress is not None:
                progress(_pairs(len(rows)) - _pairs(len(rows) - state.done), _pairs(len(rows)))
    positive, negative = (best.clamp_(max=1.0).cpu().numpy() for best in (state.positive, state.negative))
    return Interference(np.ones(len(rows)), positive, negative, rows.index.cpu().numpy(), rows.zero_rows)


@dataclass(eq=False)
class _State:
    """The largest entries of each row so far (V x K, descending) of both signs; rows before `done` have met all others."""

    positive: Tensor
    negative: Tensor
    done: int

    @classmethod
    def start(cls, rows: similarity.UnitRows, depth: int) -> "_State":
        zeros = torch.zeros(len(rows), depth, dtype=rows.tile_dtype, device=rows.matrix.device)
        return cls(zeros, zeros.clone(), 0)

    @classmethod
    def find(cls, path: Path, rows: similarity.UnitRows, depth: int) -> "_State":
        """A finished state of this depth or a deeper one, else what a stopped run left at `path`, else the start."""
        stopped = cls.start(rows, depth)
        for kept, k_max in _at_least_as_deep(path):
            state = cls.load(kept, rows, min(k_max, len(rows)))
            if state.done == len(rows):
                return cls(state.positive[:, :depth], state.negative[:, :depth], state.done)
            if kept == path:
                stopped = state
        return stopped

    @classmethod
    def load(cls, path: Path, rows: similarity.UnitRows, depth: int) -> "_State":
        try:
            with np.load(path) as stored:
                parts, done = [torch.from_numpy(stored[name]) for name in ("positive", "negative")], int(stored["done"])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise RepcapError(f"{path} cannot be read ({error}); delete it to start afresh") from error
        if any(part.shape != (len(rows), depth) or part.dtype != rows.tile_dtype for part in parts):
            raise RepcapError(f"{path} belongs to another computation; delete it to start afresh")
        sound = all(bool(torch.isfinite(part).all() and (part.diff(dim=1) <= 0).all()) for part in parts)
        if not sound or not 0 <= done <= len(rows):
            raise RepcapError(f"{path} holds no state of this computation; delete it to start afresh")
        return cls(*(part.to(rows.matrix.device) for part in parts), done)

    def save(self, path: Path) -> None:
        with paths.atomic(path) as temporary:
            np.savez(temporary, positive=self.positive.cpu(), negative=self.negative.cpu(), done=self.done)

    def add(self, first: int, cosines: Tensor) -> None:
        """Let the rows from `first` on meet the columns of a tile (n x w)."""
        span = slice(first, first + len(cosines))
        _raise(self.positive[span], cosines, cosines.amax(dim=1), 1)
        _raise(self.negative[span], cosines, cosines.amin(dim=1).neg_(), -1)


def _at_least_as_deep(path: Path) -> list[tuple[Path, int]]:
    """The files beside and of the state `path` that are of the same computation and no less deep, with their k_max, ascending."""
    computation, _, wanted = path.stem.rpartition("-")
    files = [(file, file.stem.rpartition("-")[2]) for file in path.parent.glob(f"{computation}-*{path.suffix}")]
    depths = [(file, int(k_max)) for file, k_max in files if k_max.isdecimal() and int(k_max) >= int(wanted)]
    return sorted(depths, key=lambda entry: entry[1])


def _raise(best: Tensor, cosines: Tensor, extreme: Tensor, sign: int) -> None:
    """Merge a tile (n x w) times `sign` into running largest entries (n x K, in place), in the rows that it can change."""
    changed = torch.nonzero(extreme > best[:, -1]).squeeze(1)
    if len(changed):
        candidates = _largest(cosines[changed] * sign, best.shape[1])
        best[changed] = torch.cat([best[changed], candidates], dim=1).topk(best.shape[1], dim=1).values


def _largest(values: Tensor, depth: int) -> Tensor:
    """The largest positive entries of each row, descending, and zeros where there are fewer than `depth` (n x depth)."""
    found = values.topk(min(depth, values.shape[1]), dim=1).values.clamp_(min=0.0)
    return torch.nn.functional.pad(found, (0, depth - found.shape[1]))


def _depth(k_max: int, m: int) -> int:
    return min(whole_number("k_max", k_max, 1), m)


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _without_zero_rows(name: str, matrix: Matrix) -> Tensor:
    tensor = similarity.as_matrix(matrix)
    zero = similarity.unit_rows(tensor).zero_rows
    if zero:
        first = int((tensor == 0).all(dim=1).nonzero()[0])
        raise RepcapError(
            f"{zero} of the {name} are zero (the first in row {first}) and can say nothing; leave them out"
        )
    return tensor


def _digest(matrix: Tensor, centre: bool, components: int) -> str:
    """A name for a computation: of the entries of the matrix and of what is removed from it."""
    hashed = hashlib.sha256(f"{_STATE_FORMAT} {tuple(matrix.shape)} {matrix.dtype} {centre} {components}".encode())
    for block in matrix.split(similarity.SCAN_ROWS):
        hashed.update(block.contiguous().cpu().view(torch.uint8).numpy())
    return hashed.hexdigest()[:16]


# --- probes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BestProbe:
    """The probe of least worst-case error for one feature, with the certificate that no probe does better.

    Attributes:
        row: the feature.
        vector: the probe b, d values, with <a_row, b> = 1.
        error: T_k of b, recomputed from b.
        bound: the dual value: no probe with <a_row, b> = 1 has a smaller T_k.
        combination: m coefficients c with c_row = 0, |c|_inf <= 1, |c|_1 <= k and bound * a_row = sum_j c_j a_j, from which
            the bound follows: bound = <bound * a_row, b> = sum_j c_j <a_j, b> <= T_k(b).
    """

    row: int
    vector: np.ndarray
    error: float
    bound: float
    combination: np.ndarray


def least_squares_probes(features: np.ndarray) -> np.ndarray:
    """Probes (m x d) proportional to (A A^T)^-1 a_i, with <a_i, b_i> = 1: the least sum of squares of the interference.

    They equal the features' own vectors for tight frames, and read independent features without error. The pseudo-inverse
    stands in where the features do not span R^d.

    Raises:
        RepcapError: see `interference`.
    """
    a = _float64(features)
    probes = a @ linalg.pinvh(a.T @ a)
    return probes / (a * probes).sum(axis=1, keepdims=True)


def best_probes(
    features: np.ndarray, k: int, rows: Sequence[int] | None = None, *, max_workers: int = 1
) -> list[BestProbe]:
    """The probes of least worst-case error at sparsity k, by linear programming (HiGHS), each with its certificate.

    min over b with <a_i, b> = 1 of T_k(|<a_j, b>|, j != i), where T_k(y) = min over theta >= 0 of
    k theta + sum_j max(y_j - theta, 0): variables b, theta and u >= 0 with u_j + theta >= +-<a_j, b>.

    Args:
        features: m x d.
        k: how many features are active at most.
        rows: the features to find probes for; None is all.
        max_workers: processes that solve at once.

    Raises:
        RepcapError: see `interference`; k not in 1 to m; a row that is not there; a program without an optimum (row and
            reason are named) or whose primal and dual values differ by more than `DUALITY_GAP`.
    """
    a = _float64(features)
    k = whole_number("k", k, 1, len(a))
    wanted = list(range(len(a))) if rows is None else [whole_number("row", row, 0, len(a) - 1) for row in rows]
    max_workers = whole_number("max_workers", max_workers, 1)
    if max_workers == 1 or len(wanted) < 2:
        return _solved(a, k, wanted)
    shares = [share.tolist() for share in np.array_split(wanted, min(max_workers, len(wanted)))]
    # a forked child of a process that has used torch's threads can hang
    with ProcessPoolExecutor(len(shares), mp_context=multiprocessing.get_context("spawn")) as executor:
        futures = [executor.submit(_solved, a, k, share) for share in shares]
        return list(chain.from_iterable(future.result() for future in futures))


def _solved(a: np.ndarray, k: int, rows: list[int]) -> list[BestProbe]:
    # the solver's tolerances are absolute; the unit of the entries does not matter
    peak = np.abs(a).max()
    found = [_best_probe(a / peak, k, row) for row in rows]
    return [replace(best, vector=best.vector / peak) for best in found]


def _best_probe(a: np.ndarray, k: int, row: int) -> BestProbe:
    others = np.delete(a, row, axis=0)
    count, d = others.shape
    slack = sparse.hstack([-np.ones((count, 1)), -sparse.eye_array(count)])
    result = optimize.linprog(
        c=np.concatenate([np.zeros(d), [k], np.ones(count)]),
        A_ub=sparse.vstack([sparse.hstack([others, slack]), sparse.hstack([-others, slack])], format="csc"),
        b_ub=np.zeros(2 * count),
        A_eq=np.concatenate([a[row], np.zeros(1 + count)])[None],
        b_eq=[1.0],
        bounds=[(None, None)] * d + [(0, None)] * (1 + count),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not result.success:
        raise RepcapError(f"no best probe for row {row} at k = {k}: {' '.join(result.message.split())}")
    vector = result.x[:d] / (a[row] @ result.x[:d])
    upper, lower = np.split(-result.ineqlin.marginals, 2)
    combination = np.insert(upper - lower, row, 0.0)
    error = float(np.sort(np.abs(others @ vector))[::-1][:k].sum())
    bound = float(result.eqlin.marginals[0])
    residual = np.abs(bound * a[row] - combination @ a).max()
    if not max(abs(error - bound), residual) <= DUALITY_GAP:
        raise RepcapError(
            f"row {row} at k = {k}: primal {error:.12g} and dual {bound:.12g} do not meet (residual {residual:.1g}); "
            "rescale the features"
        )
    return BestProbe(row, vector, error, bound, combination)


def _float64(features: np.ndarray) -> np.ndarray:
    return _without_zero_rows("features", features).to(torch.float64).cpu().numpy()


# --- what dimension is enough, what is needed -------------------------------------------------------------------------


def sufficient_dimension(m: int, k: int, error: float, failure: float = 0.5) -> int:
    """A dimension at which random signs / sqrt(d), read by themselves, err by less than `error` for every k-sparse z.

    d >= (2 / mu^2) ln(2 m^2 / failure), mu = error / k, with probability 1 - failure: Hoeffding's inequality for each of
    the pairs, and k cosines of at most mu add up to no more than the error.

    Raises:
        RepcapError: k not in 1 to m, an error or a failure outside (0, 1).

    Source: theorem 2 of arXiv 2602.11246, with the constants of its proof.
    """
    m, k = _checked_dimensions(m, k, error, failure)
    return _rounded_up(2 * (k / error) * (k / error) * (math.log(2) + 2 * math.log(m) - math.log(failure)))


def sufficient_dimension_by_supports(m: int, k: int, error: float, failure: float = 0.5) -> int:
    """The same guarantee from a smaller dimension: d >= (2 k / error^2) ln(m C(m - 1, k) 2^k / failure).

    For each row, each support of k other features and each choice of signs, the interference is a sum of k d independent
    signs / d given the row's own vector, so it exceeds the error with a probability of at most exp(-d error^2 / (2 k)); there
    are m C(m - 1, k) 2^k such sums. The logarithm grows as k ln(m/k): the dimension as k^2 ln(m/k), a power of k below 2
    wherever k is not small beside m. Arguments and errors as in `sufficient_dimension`; at k = m the supports are of k - 1.
    """
    m, k = _checked_dimensions(m, k, error, failure)
    others = min(k, m - 1)
    sums = math.log(m) + math.log(math.comb(m - 1, others)) + others * math.log(2)
    return _rounded_up(2 * k / error / error * (sums - math.log(failure)))


def average_sufficient_dimension(m: int, k: int, error: float, failure: float = 0.5) -> int:
    """The same for one input z, fixed before the dictionary is drawn: d >= (2 k / error^2) ln(2 m / failure).

    Arguments and errors as in `sufficient_dimension`. Each of the m errors is a sum of k d independent terms, to which
    Hoeffding's inequality applies as a whole. Support and values are both fixed: for all z on one support the signs can
    follow the dictionary, and this dimension is too small.
    """
    m, k = _checked_dimensions(m, k, error, failure)
    return _rounded_up(2 * k / error / error * (math.log(2) + math.log(m) - math.log(failure)))


def average_dimension(m: int, k: int, error: float) -> float:
    """The dimension at which half of all random k-sparse sign vectors are read with every error below `error`.

    d = k (z_m / error)^2 with z_m from `normal_maximum`: each of m readings errs by nearly a normal variable of variance
    k / d, and half of all draws have all of them within z_m standard deviations. At small k and d the readings have
    lighter tails than normal ones, and less dimension is enough.

    Raises:
        RepcapError: k not in 1 to m, an error outside (0, 1).
    """
    m, k = _checked_dimensions(m, k, error, 0.5)
    return k * (normal_maximum(m) / error) ** 2


def average_dimension_of_pairs(m: int, error: float) -> float:
    """What `average_dimension` approximates, by the exact law at k = 2 for features drawn uniformly from the sphere.

    Let t = +-<a_i, a_j> be the cosine of the two active features, with the signs of z. Their readings err by |t|, and given
    t the others are independent: |x| = sqrt(2 + 2 t) times a coordinate of a random unit vector. The probability that all
    m errors are below `error` is therefore one integral over t, and it is 1/2 at the (real) dimension returned, 2 or more.

    Raises:
        RepcapError: m is no whole number from 2 on, an error outside (0, 1).
    """
    m, _ = _checked_dimensions(m, 2, error, 0.5)

    def success(d: float) -> float:
        log_scale = special.gammaln(d / 2) - special.gammaln((d - 1) / 2) - math.log(math.pi) / 2

        def at(t: float) -> float:
            beyond = special.betainc((d - 1) / 2, 0.5, max(0.0, 1 - error**2 / (2 + 2 * t)))
            within = -math.inf if beyond == 1 else (m - 2) * math.log1p(-beyond)
            return math.exp(log_scale + (d - 3) / 2 * math.log1p(-t * t) + within)

        return integrate.quad(at, -error, error, epsabs=1e-12, epsrel=1e-10, limit=200)[0]

    if success(2) >= 0.5:
        return 2.0
    return float(optimize.brentq(lambda d: success(d) - 0.5, 2, 2 * average_dimension(m, 2, error) + 10, rtol=1e-12))


def normal_maximum(m: int) -> float:
    """z_m = Phi^-1((1 + 2^(-1/m)) / 2): the median of the largest magnitude of m independent standard normal variables.

    Raises:
        RepcapError: m is no whole number from 1 on.
    """
    m = whole_number("m", m, 1, _LARGEST_COUNT)
    # by the upper tail, which does not round to 0 at large m
    return float(-special.ndtri(-math.expm1(-math.log(2) / m) / 2))


def necessary_dimension(m: int, k: int, error: float) -> int:
    """A dimension below which no features and probes with <a_i, b_i> = 1 have a worst-case error of `error` at sparsity k.

    For every p >= 1: C(d + p - 1, p) >= m / (1 + max(E^(2p), (m - 1) (E/k)^(2p))). Proof. Row i of M beside its diagonal
    lies in {y : T_k(|y|) <= E}, whose extreme points are the vectors with a single entry +-E and those with all entries
    +-E/k; the convex function sum_j y_j^(2p) is largest at one of these, so the entrywise power N = M^(p) has
    |N|_F^2 <= m (1 + max(...)). Its trace is m, and N_ij = <b_i^(x p), a_j^(x p)> in the symmetric tensors of order p, a
    space of dimension C(d + p - 1, p) >= rank N >= (tr N)^2 / |N|_F^2. At p = 1 and m without end: d >= k^2 / E^2.

    For features and probes of any gain <a_i, b_i> and an error E < 1, ask for error = E / (1 - E): the gain is at least
    1 - E, and dividing each probe by its own gives one of gain 1 whose error is no larger than that. At E >= 1 nothing is
    necessary: probes of zero do.

    Raises:
        RepcapError: k not in 1 to m, or an error that is not positive or not finite.
    """
    m, k = _checked_sparsity(m, k)
    _check_error(error)
    powers = _powers(m, k, error)
    wanted = _wanted(m, k, error, powers)
    low, high = 0, m
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if (_log_symmetric(middle, powers) >= wanted).all() else (middle, high)
    return high


def _powers(m: int, k: int, error: float) -> np.ndarray:
    """The p that are tried: until the bound's denominator is 1 within e^-10, each up to `_SCANNED_POWERS`, then sparsely."""
    fall = math.log(k) - math.log(error)
    last = 1.0 if fall <= 0 else math.ceil((math.log(m) + 10) / (2 * fall)) + 1.0
    scanned = np.arange(1.0, min(last, _SCANNED_POWERS) + 1)
    # every p gives a valid bound, so that leaving some out is safe
    beyond = np.geomspace(_SCANNED_POWERS, last, _SCANNED_POWERS) if last > _SCANNED_POWERS else []
    return np.concatenate([scanned, np.floor(beyond)])


def _wanted(m: int, k: int, error: float, powers: np.ndarray) -> np.ndarray:
    """ln(m / (1 + max(E^(2p), (m - 1) (E/k)^(2p)))) at each p, less what rounding may add."""
    log_error = 2 * powers * math.log(error)
    spread = np.maximum(log_error, log_error - 2 * powers * math.log(k) + math.log(max(m - 1, 1)))
    return math.log(m) - np.logaddexp(0, spread) - 1e-12


def _log_symmetric(d: int, powers: np.ndarray) -> np.ndarray:
    """ln C(d + p - 1, p) at each p of `_powers`: a sum of positive terms as far as all p are there."""
    consecutive = min(len(powers), _SCANNED_POWERS)
    p = powers[consecutive:]
    large = special.gammaln(d + p) - special.gammaln(p + 1) - special.gammaln(float(d))
    # rounding of the terms must not turn an equality into a larger dimension
    large += 1e-14 * special.gammaln(d + p)
    return np.concatenate([np.cumsum(np.log1p((d - 1) / powers[:consecutive])), large])


def guaranteed_sparsity(coherence: float, error: float) -> int:
    """The largest k with k coherence < error: ceil(error / coherence) - 1, for features that are read by themselves.

    Raises:
        RepcapError: a coherence or an error that is not positive, not finite, or so small that no k can be named.
    """
    if not (coherence > 0 and error > 0 and coherence < math.inf and error / coherence < math.inf):
        raise RepcapError(f"coherence = {coherence:g}, error = {error:g}; both must be positive, finite numbers")
    return math.ceil(error / coherence) - 1


def typical_sparsity(rms_cosine: float, m: int, error: float) -> float:
    """The k at which half of all random k-sparse sign vectors are read within `error`: (error / (rms_cosine z_m))^2.

    `average_dimension` solved for k with the root mean square of the cosines in place of 1 / sqrt(d).

    Raises:
        RepcapError: a cosine or an error that is not positive or not finite, m below 1.
    """
    if not (0 < rms_cosine < math.inf and 0 < error < math.inf):
        raise RepcapError(f"rms_cosine = {rms_cosine:g}, error = {error:g}; both must be positive, finite numbers")
    return (error / (rms_cosine * normal_maximum(m))) ** 2


def _check_error(error: float) -> None:
    if not 0 < error < math.inf:
        raise RepcapError(f"error = {error:g}; it must be positive and finite")


def _checked_sparsity(m: int, k: int) -> tuple[int, int]:
    m = whole_number("m", m, 1, _LARGEST_COUNT)
    return m, whole_number("k", k, 1, m)


def _checked_dimensions(m: int, k: int, error: float, failure: float) -> tuple[int, int]:
    if not (0 < error < 1 and 0 < failure < 1):
        raise RepcapError(f"error = {error:g}, failure = {failure:g}; both must lie between 0 and 1, both excluded")
    return _checked_sparsity(m, k)


def _rounded_up(dimension: float) -> int:
    if dimension == math.inf:
        raise RepcapError("the dimension is beyond the range of numbers; take a larger error")
    return math.ceil(dimension)


# --- features and probes that do not align ----------------------------------------------------------------------------


class FeaturesAndProbes(NamedTuple):
    """Features (m x d, one a row) and a probe for each (m x d)."""

    features: np.ndarray
    probes: np.ndarray


def shared_directions(directions: np.ndarray, alignment: float) -> FeaturesAndProbes:
    """a_i = c_i + l a*, b_i = c_i + l b* with l = sqrt(1/alignment - 1): probes that nearly ignore their features.

    The rows of `directions` ((m + 2) x d) are c_1 .. c_m, a*, b*; with unit rows of coherence mu the cosine of a_i and b_i
    is `alignment` up to O(mu), and every entry of M beside its diagonal at most (1 + l)^2 mu.

    Raises:
        RepcapError: fewer than three directions, one that is not finite, an alignment outside (0, 1].

    Source: proposition 9 of arXiv 2602.11246.
    """
    c, scale = _directions(directions), _shared_length(alignment)
    if len(c) < 3:
        raise RepcapError(f"directions have shape {c.shape}; give a matrix of one feature or more and two shared rows")
    return FeaturesAndProbes(c[:-2] + scale * c[-2], c[:-2] + scale * c[-1])


def shared_directions_coherence(k: int, error: float, alignment: float) -> float:
    """The coherence mu of `shared_directions` at which k active features interfere by no more than `error`.

    mu = error / (k (1 + l)^2), l = sqrt(1/alignment - 1), since <b_i, a_j> = <c_i, c_j> + l <c_i, a*> + l <b*, c_j> +
    l^2 <b*, a*>, four cosines of at most mu. The preprint prints (1 + l^2), which leaves the two mixed terms out.

    Raises:
        RepcapError: k below 1, an error that is not positive, an alignment outside (0, 1].

    Source: proposition 9 of arXiv 2602.11246, corrected.
    """
    k = whole_number("k", k, 1)
    _check_error(error)
    return error / (k * (1 + _shared_length(alignment)) ** 2)


def detached(directions: np.ndarray, alignment: float) -> FeaturesAndProbes:
    """a_i = (c_i, l, 0), b_i = (c_i, 0, l) in R^(d + 2), l = sqrt(1/alignment - 1): any alignment, no interference added.

    <b_i, a_j> = <c_i, c_j> exactly, and for unit rows c_i of `directions` (m x d) cos(a_i, b_i) = 1/(1 + l^2) = alignment.

    Raises:
        RepcapError: directions that are no matrix of finite numbers, an alignment outside (0, 1].
    """
    c, scale = _directions(directions), _shared_length(alignment)
    own, other = np.full((len(c), 1), scale), np.zeros((len(c), 1))
    return FeaturesAndProbes(np.hstack([c, own, other]), np.hstack([c, other, own]))


def equal_cosines(m: int, cosine: float) -> np.ndarray:
    """m unit vectors in R^m (m x m, one a row), every two of which have the same cosine, at least 0 and below 1.

    Raises:
        RepcapError: m below 1 or a cosine outside [0, 1).
    """
    m = whole_number("m", m, 1)
    if not 0 <= cosine < 1:
        raise RepcapError(f"cosine = {cosine:g}; it must lie in [0, 1)")
    return np.linalg.cholesky(np.full((m, m), cosine) + (1 - cosine) * np.eye(m))


def least_alignment(error: float, norm: float) -> float:
    """cos(a_i, b_i) >= (1 - error) / norm^2 for features and probes no longer than `norm` that err by at most `error`.

    M_ii >= 1 - error, and M_ii = |a_i| |b_i| cos(a_i, b_i).

    Raises:
        RepcapError: an error outside (0, 1), a norm below sqrt(1 - error), with which no feature could be read.

    Source: proposition 11 of arXiv 2602.11246.
    """
    if not 0 < error < 1 or not (math.sqrt(1 - error) * (1 - 1e-15) <= norm < math.inf):
        raise RepcapError(
            f"error = {error:g}, norm = {norm:g}; the error must lie in (0, 1) and the norm be sqrt(1 - error) or more"
        )
    return min(1.0, (1 - error) / norm**2)


def largest_cosine(error: float, norm: float) -> float:
    """cos(a_i, a_j) and cos(b_i, b_j) are at most error norm^2 / (1 - error)^2 + sqrt(1 - (1 - error)^2 / norm^4).

    The unit vector of a_i is c b + s w with b that of b_i, w orthogonal to it, c = cos(a_i, b_i) and s = sqrt(1 - c^2), so
    cos(a_i, a_j) <= M_ij / (|b_i| |a_j|) + s, where both lengths are at least (1 - error) / norm. The preprint prints
    1 - error in the first denominator; each of the two lengths contributes one such factor.

    Arguments and errors as in `least_alignment`. Source: proposition 11 of arXiv 2602.11246, corrected.
    """
    alignment = least_alignment(error, norm)
    return error * norm**2 / (1 - error) ** 2 + math.sqrt(1 - alignment**2)


def sharp_largest_cosine(error: float, norm: float) -> float:
    """The largest possible cos(a_i, a_j) under the same conditions: cos(arccos(e/g) - arccos((1 - e)/g)), g = norm^2.

    Proof. Let |a_i| <= |a_j|. For t >= 0, gamma |a_i - t (|a_i|/|a_j|) a_j| >= <b_i, a_i - t (|a_i|/|a_j|) a_j>
    >= 1 - e - t e, so with c the cosine g^2 (1 - 2 t c + t^2) >= (1 - e - t e)^2 while t e <= 1 - e. The t that makes the
    resulting bound on c least, sqrt((1 - ((1 - e)/g)^2) / (1 - (e/g)^2)), gives the value above. It is attained in a plane
    by vectors that all have length gamma.

    Raises:
        RepcapError: as `least_alignment`; an error above 1/2, where the best t leaves that range.
    """
    alignment = least_alignment(error, norm)
    if error > 0.5:
        raise RepcapError(f"error = {error:g}; this bound holds up to 1/2")
    return math.cos(math.acos(min(1.0, error / norm**2)) - math.acos(alignment))


def _directions(directions: np.ndarray) -> np.ndarray:
    c = np.asarray(directions, dtype=float)
    if c.ndim != 2 or not np.isfinite(c).all():
        raise RepcapError(f"directions have shape {c.shape}; give a matrix of finite numbers, one direction a row")
    return c


def _shared_length(alignment: float) -> float:
    if not 0 < alignment <= 1 or 1 / alignment == math.inf:
        raise RepcapError(f"alignment = {alignment:g}; the cosine of a feature and its probe must lie in (0, 1]")
    return math.sqrt(1 / alignment - 1)


# --- real embeddings as data ------------------------------------------------------------------------------------------


def keep(embedding: embeddings.Embedding, found: Interference, *, centre: bool, components: int) -> None:
    """Put what was found of an embedding into `STORE` and `TOKENS`, for k up to `DEPTH`.

    Args:
        embedding: what `embeddings.load` gives.
        found: its `embedding_interference` with k_max of `DEPTH` or more.
        centre, components: what was removed first: the mean row, and how many principal directions.
    """
    labels = None if embedding.tokens is None else tokens.labels(embedding.tokens)
    head = {"name": embedding.name, "centred": "yes" if centre else "no", "components": components}
    stores.keep(STORE, list(_store_rows(head, embedding, found.up_to(DEPTH))), by=tuple(head))
    stores.keep(TOKENS, list(_token_rows(head, labels, found.up_to(DEPTH))), by=tuple(head))


def _store_rows(
    head: dict[str, object], embedding: embeddings.Embedding, found: Interference
) -> Iterator[dict[str, object]]:
    for inputs in INPUTS:
        for k in range(1, found.depth + 1):
            errors = found.errors(k, inputs)
            yield head | {
                "V": len(embedding.weight),
                "d_model": embedding.d_model,
                "zero_rows": found.zero_rows,
                "inputs": inputs,
                "k": k,
                "error": float(errors.max()),
                "median": float(np.median(errors)),
                "percentile_99": float(np.quantile(errors, 0.99)),
                "share_below_half": float((errors < 0.5).mean()),
                "share_separable": float((found.margins(k) > 0).mean()),
                "version": __version__,
                "commit": sweep.commit(),
            }


def _token_rows(
    head: dict[str, object], labels: Sequence[str] | None, found: Interference
) -> Iterator[dict[str, object]]:
    for k in (k for k in _RANKED_KS if k <= found.depth):
        errors = found.errors(k)
        for rank, at in enumerate(np.argsort(-errors, kind="stable")[:_RANKED], start=1):
            row = int(found.rows[at])
            yield head | {
                "k": k,
                "rank": rank,
                "row": row,
                "token": f"<row {row}>" if labels is None else labels[row],
                "error": float(errors[at]),
                "version": __version__,
            }
