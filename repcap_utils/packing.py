"""Coherence minimisation: k unit vectors in R^d whose largest |cosine| is as small as an optimiser can make it.

Three procedures. `optimise` is the engine: a smooth maximum of the Gram matrix with a rising exponent, computed in tiles, the
best iterate kept. `polish` takes a small packing to the nearest exact local optimum by linear programming.
`optimise_published` is the procedure of arXiv 2606.02765 (sec. 3.3), rewritten from its description. All end in the same
float64 certificate.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor
from torch.nn.functional import normalize

from repcap_utils import bounds
from repcap_utils.checks import whole_number
from repcap_utils.errors import RepcapError
from repcap_utils.kernels import tiles
from repcap_utils.resources import free_memory, require_memory, torch_device

CPU_TILE = 512  # 1 MiB of float32: product and powers of a tile stay in a core's cache
GPU_TILE = 8192
CERTIFICATE_TILE = 1024
WORST_PAIRS = 10
SMALLEST_TILE = 16
TILE_BUFFERS = 4
STATE_MATRICES = 6  # iterate, best iterate, gradient, two moments, a scratch: k x d each
PRECISIONS = ("ieee", "tf32", "bf16")

FIRST_EXPONENT = 8
EXPONENT_PER_STEP = 1.5
LEAST_LAST_EXPONENT = 50
POWER_ERROR = 1e-3  # the largest relative error of a power that the working precision may bring
LARGEST_STEP = 0.2
LARGEST_EXCESS = 40.0  # natural logarithm: e^40 squared is still a float32
LEAP, SHRINKAGE, LEAST_BETWEEN_SHRINKS = 1.1, 0.7, 3
JITTER = 1e-6
WARM_ENTRY = 0.9  # earlier, large steps and a low exponent undo what the start has reached
ADAM_BETAS = (0.85, 0.95)
ADAM_EPS = 1e-8  # rows far from the worst pairs have almost no gradient, and should almost not move
LEAST_PATIENCE = 20

SMALLEST_GAIN = 1e-14
MOST_POLISHED = 5000  # coordinates; beyond, the linear programs take longer than they are worth

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Certificate:
    """What is proved of a set of k unit vectors in R^d.

    Attributes:
        vectors: k x d float64 on the CPU, rows of unit norm.
        coherence: max over i != j of |<v_i, v_j>|, computed in float64 from `vectors`.
        worst_pairs: up to ten rows (i, j, <v_i, v_j>), i < j, of largest |cosine|, the worst first.
    """

    vectors: Tensor
    coherence: float
    worst_pairs: tuple[tuple[int, int, float], ...]

    @property
    def k(self) -> int:
        return self.vectors.shape[0]

    @property
    def d(self) -> int:
        return self.vectors.shape[1]

    @property
    def welch(self) -> float:
        """Welch's lower bound on the coherence of any k vectors in R^d."""
        return float(bounds.welch(self.k, self.d))

    @property
    def levenshtein(self) -> float:
        """Levenshtein's lower bound on the coherence of any k vectors in R^d."""
        return bounds.levenshtein(self.k, self.d)


@dataclass(frozen=True)
class Packing(Certificate):
    """A certified packing and how it came about.

    Attributes:
        seed: of the start.
        history: rows (step, exponent, coherence, smooth maximum) in working precision, one for each iterate looked at: up to
            steps + 1 for `optimise`, steps for `optimise_published`, none for an orthonormal set.
    """

    seed: int
    history: np.ndarray


def certify(vectors: Tensor) -> Certificate:
    """Renormalise rows (k x d, any float type, any device) in float64 and measure their coherence, in tiles.

    Raises:
        RepcapError: fewer than two rows, or a row that is zero or not finite.
    """
    _require_matrix(vectors, "cannot certify")
    if vectors.ndim != 2 or vectors.shape[0] < 2:
        raise RepcapError(f"cannot certify vectors of shape {tuple(vectors.shape)}: give at least two rows (k x d)")
    exact = _unit_rows(vectors, "cannot certify")
    worst: list[tuple[int, int, float]] = []
    for i, j in _upper_tiles(len(exact), CERTIFICATE_TILE):
        cosines = exact[i : i + CERTIFICATE_TILE] @ exact[j : j + CERTIFICATE_TILE].T
        worst = sorted(worst + _largest_of_tile(cosines, i, j), key=lambda pair: -abs(pair[2]))[:WORST_PAIRS]
    return Certificate(exact, abs(worst[0][2]), tuple(worst))


def optimise(
    k: int,
    d: int,
    *,
    seed: int = 0,
    steps: int = 300,
    restarts: int = 1,
    start: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    tile: int | None = None,
    precision: str = "ieee",
    progress: Progress | None = None,
) -> Packing:
    """Find k unit vectors in R^d of low coherence.

    Adam on the product of spheres minimises the p-norm of the off-diagonal Gram entries divided by their current maximum,
    so that no power over- or underflows harmfully. The exponent p rises geometrically from 8 to 1.5 a step (at least 50, at
    most what the precision bears) while the step size decays as a cosine. The Gram matrix exists only as tiles of its upper
    half. The best iterate is kept. A run that leaps more than a tenth above its best takes smaller steps from then on. A run
    whose best has not fallen for a tenth of the steps (20 at least) has stalled: it skips half of the schedule that is left,
    and so ends early. For k <= d the answer is an orthonormal set.

    Args:
        k: number of vectors, at least 2.
        d: dimension, at least 1.
        seed: of the start, drawn by SeedSequence([seed, k, d]).
        steps: largest number of gradient steps, at least 1.
        restarts: number of runs, with seeds seed, seed + 1, ...; the best packing is returned, with its seed.
        start: k x d vectors to begin from instead; they enter the last tenth of the schedule, and the result is
            never worse.
        dtype: of the iteration, float32 or float64; the certificate is float64 always.
        device: of the iteration.
        tile: rows of a tile of the Gram matrix; by default what suits the cache or the free memory.
        precision: of the products on a GPU: "ieee", "tf32" or "bf16".
        progress: called as progress(step, coherence) before each step.

    Raises:
        RepcapError: an argument out of range, a start of another shape or with a zero or non-finite row, a device that is not
            there, or too little memory for the vectors or the tile (the message says which tile would fit).

    Source: the objective is that of arXiv 2606.02765, sec. 3.3, with the exponent annealed instead of fixed.
    """
    _validate(k, d, steps, seed)
    _validate_run(k, d, restarts, start, dtype, tile, precision)
    k, d = int(k), int(d)  # a product of numpy integers could overflow
    place = torch_device(device)
    require_memory(16 * k * d, f"{k} x {d} vectors in float64")
    if k <= d:
        return _orthonormal(k, d, seed)
    kernel = tiles(place, entries=restarts * steps * k * k).gram_power_tile
    engine = _Engine(_tile_rows(k, d, dtype, place, tile), kernel, dtype, place, precision, progress)
    runs = (engine.run(start, k, d, seed + restart, steps) for restart in range(restarts))
    return min(runs, key=lambda packing: packing.coherence)


def polish(packing: Packing, *, rounds: int = 200) -> Packing:
    """Take a small packing to the nearest local optimum of the coherence itself, by sequential linear programming.

    Each round lowers, to first order in tangential moves within a trust region, the largest |<v_i, v_j>| of the pairs that
    the region could bring to the top (each with its present sign), and keeps the move if the exact coherence falls. Where as
    many pairs attain the maximum as there are degrees of freedom, convergence is quadratic.

    Args:
        packing: k x d coordinates, at most 5000 in all.
        rounds: at most so many linear programs.

    Returns:
        A packing of the same or lower coherence, with the same seed and history.

    Raises:
        RepcapError: too many coordinates, or rounds < 1.
    """
    if packing.k * packing.d > MOST_POLISHED:
        raise RepcapError(
            f"{packing.k} x {packing.d} is too large to polish: at most {MOST_POLISHED} coordinates; use more steps instead"
        )
    whole_number("rounds", rounds, 1)
    best, radius = certify(packing.vectors), 0.1
    for _ in range(rounds):
        move, predicted = _linear_move(best, radius)
        if predicted < SMALLEST_GAIN:
            break
        candidate = certify(best.vectors + move)
        gain = best.coherence - candidate.coherence
        radius *= 2.0 if gain > predicted / 2 else 0.25
        if gain > 0:
            best = candidate
    return Packing(best.vectors, best.coherence, best.worst_pairs, packing.seed, packing.history)


def published_exponent(k: int, d: int) -> int:
    """Exponent p that the published procedure uses at (k, d), by the rule of its released code (arXiv 2606.02765).

    p = min(int(m / ln d), 20), with m = 40 for k <= 4000, 50 for k > 4000 and d >= 3072, else 60.
    """
    _validate(k, d)
    if d == 1:
        return 20
    m = 40 if k <= 4000 else 50 if d >= 3072 else 60
    return min(int(m / math.log(d)), 20)


def optimise_published(
    k: int,
    d: int,
    *,
    seed: int = 0,
    steps: int = 5000,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Packing:
    """The published procedure (arXiv 2606.02765, sec. 3.3), rewritten from its description as a baseline.

    Adam by automatic differentiation on the sum over i != j of |G_ij|^p with the full k x k Gram matrix in float32, a fixed
    exponent (`published_exponent`), learning rate 0.005 for d <= 1024 and 0.0025 above, the last iterate recorded.

    Args as for `optimise`. The memory it needs grows as k^2.

    Raises:
        RepcapError: k, d, steps or seed out of range, a device that is not there, or too little memory.
    """
    _validate(k, d, steps, seed)
    k, d = int(k), int(d)  # a product of numpy integers could overflow
    require_memory(6 * 4 * k * k, f"the {k} x {k} Gram matrix and its gradients; `optimise` works in tiles")
    exponent = published_exponent(k, d)
    place = torch_device(device)
    vectors = random_unit_vectors(k, d, seed).to(device=place, dtype=torch.float32).requires_grad_()
    adam = torch.optim.Adam([vectors], lr=0.005 if d <= 1024 else 0.0025)
    off_diagonal = 1 - torch.eye(k, device=place)
    history = np.empty((steps, 4))
    for step in range(steps):
        adam.zero_grad()
        unit = normalize(vectors, dim=1)
        cosines = (unit @ unit.T * off_diagonal).abs()
        coherence = float(cosines.detach().max())
        if progress is not None:
            progress(step, coherence)
        loss = cosines.pow(exponent).sum()
        history[step] = step, exponent, coherence, (float(loss.detach()) / 2) ** (1 / exponent)
        loss.backward()
        adam.step()
    return _package(vectors, seed, history)


def random_unit_vectors(k: int, d: int, seed: int) -> Tensor:
    """k x d float64 unit rows, uniform on the sphere, drawn on the CPU from SeedSequence([seed, k, d])."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, k, d]))
    return normalize(torch.from_numpy(generator.standard_normal((k, d))), dim=1)


class _Schedule:
    """Exponent and step size along a run of at most `steps` steps, as functions of the fraction `position` of the way."""

    def __init__(self, k: int, d: int, steps: int, entry: float, last_exponent: float) -> None:
        # as k nears d, ever smaller steps upset a nearly tight frame
        self.largest_step = LARGEST_STEP * max(1 - d / k, 1 / math.sqrt(d)) / math.sqrt(d)
        self.ratio = last_exponent / FIRST_EXPONENT
        self.pace = (1 - entry) / steps
        self.patience = max(LEAST_PATIENCE, steps // 10)
        self.position, self.best = entry, math.inf
        self.since_best = self.since_shrunk = 0

    @property
    def exponent(self) -> int:
        """Even, on the geometric ramp: an even p leaves G^(p-1) its sign."""
        return 2 * round(FIRST_EXPONENT * self.ratio**self.position / 2)

    @property
    def step_size(self) -> float:
        """Adam's step, to move coordinates of size 1/sqrt(d)."""
        return self.largest_step * 0.5 * (1 + math.cos(math.pi * self.position))

    @property
    def finished(self) -> bool:
        return self.position > 1 - self.pace / 2

    def advance(self, coherence: float, noticeable: float) -> None:
        """One step on. A run that leaps above its best shrinks its steps; one that has stalled skips half of what is left."""
        self.position += self.pace
        self.since_best += 1
        self.since_shrunk += 1
        if coherence < self.best * (1 - noticeable):
            self.best, self.since_best = coherence, 0
        elif self.since_best >= self.patience:
            self.position, self.since_best = (1 + self.position) / 2, 0
        if coherence > LEAP * self.best and self.since_shrunk >= LEAST_BETWEEN_SHRINKS:
            self.largest_step *= SHRINKAGE
            self.since_shrunk = 0


class _Adam:
    """Adam on rows that stay unit vectors."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.first, self.second = torch.zeros_like(vectors), torch.zeros_like(vectors)
        self.count = 0

    def step(self, gradient: Tensor, size: float) -> None:
        """Move the vectors in place; `gradient` is used up."""
        self.count += 1
        beta1, beta2 = ADAM_BETAS
        self.first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        torch.sqrt(self.second, out=gradient).div_(math.sqrt(1 - beta2**self.count)).add_(ADAM_EPS)
        self.vectors.addcdiv_(self.first, gradient, value=-size / (1 - beta1**self.count))
        normalize(self.vectors, dim=1, out=self.vectors)


@dataclass(frozen=True)
class _Engine:
    """Where and how a run computes: rows of a tile and its kernel, working type, device, precision of the products."""

    tile: int
    kernel: Callable[..., tuple[Tensor, Tensor, Tensor]]
    dtype: torch.dtype
    device: torch.device
    precision: str
    progress: Progress | None

    def run(self, start: Tensor | None, k: int, d: int, seed: int, steps: int) -> Packing:
        flush_before = _set_flush_denormal(True)
        try:
            vectors = self._start(start, k, d, seed)
            highest = max(
                LEAST_LAST_EXPONENT, min(EXPONENT_PER_STEP * steps, POWER_ERROR / torch.finfo(self.dtype).eps)
            )
            schedule = _Schedule(k, d, steps, 0.0 if start is None else WARM_ENTRY, highest)
            best, history = self._descend(vectors, schedule)
        finally:
            _set_flush_denormal(flush_before)
        found = _package(best, seed, history)
        if start is None:
            return found
        return min(_package(start, seed, history), found, key=lambda packing: packing.coherence)

    def _start(self, start: Tensor | None, k: int, d: int, seed: int) -> Tensor:
        exact = random_unit_vectors(k, d, seed)
        if start is not None:
            # equal rows have equal gradients and would never part without a little noise
            exact = normalize(_unit_rows(start, "start").add_(exact, alpha=JITTER), dim=1)
        return exact.to(device=self.device, dtype=self.dtype, copy=True)

    def _descend(self, vectors: Tensor, schedule: _Schedule) -> tuple[Tensor, np.ndarray]:
        """The best iterate of a run (`vectors` are overwritten) and its history."""
        adam, best, best_coherence = _Adam(vectors), vectors.clone(), math.inf
        noticeable = 4 * torch.finfo(self.dtype).eps
        _, coherence, _ = self._power_product(vectors, 1, 1.0)
        history = []
        while True:
            gradient, coherence, smooth = self._gradient(vectors, schedule.exponent, coherence)
            history.append((len(history), schedule.exponent, coherence, smooth))
            if coherence < best_coherence:
                best_coherence = coherence
                best.copy_(vectors)
            if schedule.finished:
                return best, np.array(history)
            if self.progress is not None:
                self.progress(len(history) - 1, coherence)
            adam.step(gradient, schedule.step_size)
            schedule.advance(coherence, noticeable)

    def _gradient(self, vectors: Tensor, exponent: int, guess: float) -> tuple[Tensor, float, float]:
        """Tangential gradient of the sum of |G_ij / coherence|^p, up to a constant factor, the coherence, the smooth maximum.

        One pass suffices: it divides by `guess`, the coherence one step ago, and the difference is made up afterwards. Only
        when the coherence has leapt so far that powers of the quotient could over- or underflow is the pass repeated.
        """
        scale = guess
        gradient, coherence, total = self._power_product(vectors, exponent - 1, scale)
        excess = (exponent - 1) * math.log(coherence / scale) if coherence > 0 else 0.0
        if abs(excess) > LARGEST_EXCESS:
            scale, excess = coherence, 0.0
            gradient, _, total = self._power_product(vectors, exponent - 1, scale)
        gradient *= math.exp(-excess)
        gradient -= (gradient * vectors).sum(dim=1, keepdim=True) * vectors
        return gradient, coherence, scale * total ** (1 / exponent)

    def _power_product(self, vectors: Tensor, power: int, scale: float) -> tuple[Tensor, float, float]:
        """(G / scale)^power V without the diagonal, the coherence of V, and the sum of |G / scale|^(power + 1) over pairs.

        Only the upper half of G is computed: a tile serves its rows, and transposed its columns.
        """
        product = torch.zeros_like(vectors)
        corners = list(_upper_tiles(len(vectors), self.tile))
        # filled in place: small tensors kept between the buffers of the tiles would fragment the heap by gigabytes
        largest, totals = vectors.new_empty(2, len(corners), dtype=torch.float64)
        for number, (i, j) in enumerate(corners):
            a, b = vectors[i : i + self.tile], vectors[j : j + self.tile]
            weights, largest[number], total = self.kernel(a, b, power, scale, diagonal=i == j, precision=self.precision)
            product[i : i + self.tile].addmm_(weights, b)
            if i != j:
                product[j : j + self.tile].addmm_(weights.T, a)
            totals[number] = total if i != j else total / 2  # a diagonal tile holds each of its pairs twice
        return product, float(largest.max()), float(totals.sum())


def _upper_tiles(k: int, tile: int) -> Iterator[tuple[int, int]]:
    """First row and first column of the tiles that cover the upper half of a k x k matrix."""
    return ((i, j) for i in range(0, k, tile) for j in range(i, k, tile))


def _largest_of_tile(cosines: Tensor, i: int, j: int) -> list[tuple[int, int, float]]:
    """The `WORST_PAIRS` largest |cosine| of a tile at rows i, columns j, each pair once."""
    size = cosines.abs()
    if i == j:  # only what lies above the diagonal is a pair; the rest must not win, not even against zeros
        size.masked_fill_(torch.ones_like(size, dtype=torch.bool).tril_(), -1.0)
    flat = size.flatten().topk(min(WORST_PAIRS, size.numel())).indices
    rows, columns = flat // size.shape[1], flat % size.shape[1]
    signed = cosines[rows, columns].tolist()
    pairs = zip(rows.tolist(), columns.tolist(), signed, strict=True)
    return [(i + row, j + column, cosine) for row, column, cosine in pairs if i + row < j + column]


def _linear_move(packing: Certificate, radius: float) -> tuple[Tensor, float]:
    """Tangential move of at most `radius` in each coordinate that lowers the coherence most to first order, and by how much.

    Moves and gain are in units of the radius, so that the program is as well scaled at the end as at the beginning.
    """
    k, d = packing.k, packing.d
    vectors = packing.vectors.numpy()
    gram = vectors @ vectors.T
    # a cosine moves by at most 2 radius sqrt(d), and so does the maximum
    i, j = np.nonzero(np.triu(np.abs(gram) >= packing.coherence - 4 * radius * math.sqrt(d), 1))
    sign = np.sign(gram[i, j])[:, None]
    pair, coordinate = np.arange(len(i))[:, None], np.arange(d)
    rise = _sparse(
        (pair, i[:, None] * d + coordinate, sign * vectors[j]),
        (pair, j[:, None] * d + coordinate, sign * vectors[i]),
        (pair, np.full_like(pair, k * d), np.ones(pair.shape)),
        shape=(len(i), k * d + 1),
    )
    row = np.arange(k)[:, None]
    radial = _sparse((row, row * d + coordinate, vectors), shape=(k, k * d + 1))
    cost = np.zeros(k * d + 1)
    cost[-1] = -1.0
    found = linprog(
        cost,
        A_ub=rise,
        b_ub=(packing.coherence - np.abs(gram[i, j])) / radius,
        A_eq=radial,
        b_eq=np.zeros(k),
        bounds=[(-1.0, 1.0)] * (k * d) + [(0.0, None)],
        method="highs",
    )
    if found.x is None:
        raise RepcapError(f"cannot polish: the linear program failed ({found.message})")
    return torch.from_numpy(radius * found.x[:-1].reshape(k, d)), radius * float(found.x[-1])


def _sparse(*parts: tuple[np.ndarray, np.ndarray, np.ndarray], shape: tuple[int, int]) -> coo_array:
    """A sparse matrix from triples (rows, columns, values) that broadcast against each other."""
    rows, columns, values = zip(*(np.broadcast_arrays(*part) for part in parts), strict=True)
    flat = [np.concatenate([array.ravel() for array in arrays]) for arrays in (rows, columns, values)]
    return coo_array((flat[2], (flat[0], flat[1])), shape=shape)


def _orthonormal(k: int, d: int, seed: int) -> Packing:
    basis = torch.linalg.qr(random_unit_vectors(k, d, seed).T).Q.T
    return _package(basis, seed, np.empty((0, 4)))


def _unit_rows(vectors: Tensor, what: str) -> Tensor:
    """The rows in float64 on the CPU with unit length, always a fresh tensor; `what` begins the message of an error."""
    exact = vectors.detach().to("cpu", torch.float64)
    # the largest entry first, so that the squares of no row over- or underflow
    peaks = exact.abs().amax(dim=1, keepdim=True)
    bad = torch.nonzero(~torch.isfinite(peaks) | (peaks == 0))
    if len(bad):
        raise RepcapError(f"{what}: row {int(bad[0, 0])} is zero or not finite; remove or repair it")
    exact = exact / peaks
    return exact.div_(exact.norm(dim=1, keepdim=True))


def _package(vectors: Tensor, seed: int, history: np.ndarray) -> Packing:
    proved = certify(vectors)
    return Packing(proved.vectors, proved.coherence, proved.worst_pairs, seed, history)


def _tile_rows(k: int, d: int, dtype: torch.dtype, device: torch.device, asked: int | None) -> int:
    """Rows of a tile: as asked or as suits the device, if the vectors with their optimiser state and the tile fit."""
    size = torch.finfo(dtype).bits // 8
    room = free_memory(device) - STATE_MATRICES * k * d * size
    fits = math.isqrt(max(0, room) // (TILE_BUFFERS * size))
    preferred = CPU_TILE if device.type == "cpu" else GPU_TILE
    wanted = min(k, preferred if asked is None else asked)
    if fits < min(wanted, SMALLEST_TILE) or (asked is not None and fits < wanted):
        remedy = (
            f"a tile of {fits} rows would fit"
            if fits >= SMALLEST_TILE
            else "no tile would fit: choose a smaller k or d"
        )
        needed = STATE_MATRICES * k * d * size + TILE_BUFFERS * size * wanted**2
        raise RepcapError(
            f"not enough memory: {k} x {d} vectors with their optimiser state and a tile of {wanted} rows need"
            f" {needed / 2**30:.1f} GiB and {free_memory(device) / 2**30:.1f} GiB are free; {remedy}"
        )
    return min(wanted, fits)


def _set_flush_denormal(mode: bool) -> bool:
    """Set this thread's flush-to-zero mode and return the mode before: powers of small cosines are denormal, hence slow."""
    before = float(torch.tensor(1e-40) * torch.tensor(1.0)) == 0.0
    torch.set_flush_denormal(mode)
    return before


def _validate(k: int, d: int, steps: int = 1, seed: int = 0) -> None:
    for name, value, least in (("k", k, 2), ("d", d, 1), ("steps", steps, 1), ("seed", seed, 0)):
        whole_number(name, value, least)


def _require_matrix(vectors: object, what: str) -> None:
    if not isinstance(vectors, Tensor) or vectors.is_complex():
        raise RepcapError(f"{what}: give a real torch tensor, one vector a row, not {type(vectors).__name__}")


def _validate_run(
    k: int, d: int, restarts: int, start: Tensor | None, dtype: torch.dtype, tile: int | None, precision: str
) -> None:
    whole_number("restarts", restarts, 1)
    if tile is not None:
        whole_number("tile", tile, 1)
    if dtype not in (torch.float32, torch.float64):
        raise RepcapError(f"dtype = {dtype}: iterate in torch.float32 or torch.float64")
    if precision not in PRECISIONS:
        raise RepcapError(f"precision = {precision!r}: choose {', '.join(PRECISIONS)}")
    if start is None:
        return
    _require_matrix(start, "start")
    if tuple(start.shape) != (k, d):
        raise RepcapError(f"start has shape {tuple(start.shape)}; give {k} x {d} vectors")
    if restarts > 1:
        raise RepcapError("restarts draw new starts; give either start or restarts")
    _unit_rows(start, "start")
