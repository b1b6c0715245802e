"""Coherence minimisation: k unit vectors in R^d whose largest |cosine| is as small as an optimiser can make it.

Two procedures: `optimise_published`, the one of arXiv 2606.02765 (sec. 3.3) rewritten from its description, and `optimise`,
which raises the exponent along the way and keeps its best iterate. Both end in the same float64 certificate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import normalize

from repcap_utils.errors import RepcapError
from repcap_utils.kernels.gram_power import gram_power_panel
from repcap_utils.resources import require_memory, torch_device

PANEL_ELEMENTS = 1 << 18  # 1 MiB of float32: the panel stays in the cache through all passes over it
FIRST_EXPONENT, LAST_EXPONENT = 8, 200
LARGEST_STEP, STEP_SLOPE = 0.16, 0.2
LARGEST_EXCESS = 40.0  # natural logarithm: e^40 squared is still a float32
ADAM_BETAS = (0.9, 0.99)
ADAM_EPS = 1e-8  # rows far from the worst pairs have almost no gradient, and should almost not move

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Packing:
    """A set of k unit vectors in R^d with its certificate.

    Attributes:
        vectors: k x d float64, rows of unit norm.
        coherence: max over i != j of |<v_i, v_j>|, computed in float64 from `vectors`.
        worst_pair: the pair (i, j), i < j, that attains it.
        history: rows (step, exponent, coherence in working precision), one for each iterate looked at: steps + 1 for
            `optimise`, steps for `optimise_published`, none for an orthonormal set.
    """

    vectors: torch.Tensor
    coherence: float
    worst_pair: tuple[int, int]
    history: np.ndarray

    @property
    def k(self) -> int:
        return self.vectors.shape[0]

    @property
    def d(self) -> int:
        return self.vectors.shape[1]


def certify(vectors: torch.Tensor) -> tuple[torch.Tensor, float, tuple[int, int]]:
    """Renormalise rows (k x d, any float dtype) in float64 and measure their coherence in row panels.

    Returns:
        The float64 unit rows on the CPU, their coherence and the pair (i, j), i < j, that attains it.

    Raises:
        RepcapError: fewer than two rows, or a row that is zero or not finite.
    """
    if vectors.ndim != 2 or vectors.shape[0] < 2:
        raise RepcapError(f"cannot certify vectors of shape {tuple(vectors.shape)}: give at least two rows (k x d)")
    exact = vectors.detach().to("cpu", torch.float64)
    norms = exact.norm(dim=1)
    bad = torch.nonzero(~torch.isfinite(norms) | (norms == 0)).flatten()
    if len(bad):
        raise RepcapError(f"cannot certify: row {int(bad[0])} is zero or not finite; the run that made it diverged")
    exact = exact / norms[:, None]
    coherence, pair = -1.0, (0, 1)
    rows = _panel_rows(len(exact))
    for start in range(0, len(exact) - 1, rows):
        stop = min(start + rows, len(exact))
        cosines = (exact[start:stop] @ exact[start:].T).abs_()
        cosines.diagonal().fill_(-1.0)
        flat = int(cosines.argmax())
        value = float(cosines.view(-1)[flat])
        if value > coherence:
            i, j = divmod(flat, cosines.shape[1])
            coherence, pair = value, (start + min(i, j), start + max(i, j))
    return exact, coherence, pair


def optimise(
    k: int,
    d: int,
    *,
    seed: int = 0,
    steps: int = 600,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Packing:
    """Find k unit vectors in R^d of low coherence.

    Adam on the product of spheres minimises the p-norm of the off-diagonal Gram entries divided by their current maximum,
    so that no power over- or underflows harmfully; p rises geometrically from 8 to 200 while the step size decays as a
    cosine. The Gram matrix exists only as row panels. The best iterate is kept. For k <= d the answer is an orthonormal set.

    Args:
        k: number of vectors, at least 2.
        d: dimension, at least 1.
        seed: of the start, drawn by SeedSequence([seed, k, d]).
        steps: number of gradient steps, at least 1.
        dtype: of the iteration; the certificate is float64 always.
        device: of the iteration.
        progress: called as progress(step, coherence) before each step.

    Raises:
        RepcapError: k, d, steps or seed out of range, a device that is not there, or too little memory for k x d.

    Source: the objective is that of arXiv 2606.02765, sec. 3.3, with the exponent annealed instead of fixed.
    """
    _validate(k, d, steps, seed)
    k, d = int(k), int(d)  # a product of numpy integers could overflow
    require_memory(8 * k * d * 8, f"{k} x {d} vectors with their optimiser state")
    start = random_unit_vectors(k, d, seed)
    if k <= d:
        return _package(torch.linalg.qr(start.T).Q.T, np.empty((0, 3)))
    vectors = start.to(device=torch_device(device), dtype=dtype)
    best, best_coherence = vectors.clone(), math.inf
    first, second = torch.zeros_like(vectors), torch.zeros_like(vectors)
    history = np.empty((steps + 1, 3))
    _, scale = _power_product(vectors, 1, 1.0)
    flush_before = _set_flush_denormal(True)
    try:
        for step in range(steps + 1):
            exponent = _exponent(step, steps)
            gradient, coherence = _gradient(vectors, exponent, scale)
            history[step] = step, exponent, coherence
            if coherence < best_coherence:
                best_coherence = coherence
                best.copy_(vectors)
            if step == steps:
                break
            scale = coherence
            if progress is not None:
                progress(step, coherence)
            rate = _step_size(k, d) * 0.5 * (1 + math.cos(math.pi * step / steps))
            _adam_step(vectors, gradient, first, second, step + 1, rate)
    finally:
        _set_flush_denormal(flush_before)
    return _package(best, history)


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

    Args (without `dtype`), errors and result as for `optimise`; the memory it needs grows as k^2.
    """
    _validate(k, d, steps, seed)
    k, d = int(k), int(d)  # a product of numpy integers could overflow
    require_memory(6 * 4 * k * k, f"the {k} x {k} Gram matrix and its gradients; `optimise` works in panels")
    exponent = published_exponent(k, d)
    place = torch_device(device)
    vectors = random_unit_vectors(k, d, seed).to(device=place, dtype=torch.float32).requires_grad_()
    adam = torch.optim.Adam([vectors], lr=0.005 if d <= 1024 else 0.0025)
    off_diagonal = 1 - torch.eye(k, device=place)
    history = np.empty((steps, 3))
    for step in range(steps):
        adam.zero_grad()
        unit = normalize(vectors, dim=1)
        cosines = (unit @ unit.T * off_diagonal).abs()
        coherence = float(cosines.detach().max())
        history[step] = step, exponent, coherence
        if progress is not None:
            progress(step, coherence)
        cosines.pow(exponent).sum().backward()
        adam.step()
    return _package(vectors, history)


def random_unit_vectors(k: int, d: int, seed: int) -> torch.Tensor:
    """k x d float64 unit rows, uniform on the sphere, drawn on the CPU from SeedSequence([seed, k, d])."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, k, d]))
    return normalize(torch.from_numpy(generator.standard_normal((k, d))), dim=1)


def _package(vectors: torch.Tensor, history: np.ndarray) -> Packing:
    exact, coherence, pair = certify(vectors)
    return Packing(exact, coherence, pair, history)


def _gradient(vectors: torch.Tensor, exponent: int, guess: float) -> tuple[torch.Tensor, float]:
    """Tangential gradient of the sum of |G_ij / coherence|^exponent, up to a constant factor, and the coherence.

    One pass suffices: it divides by `guess`, the coherence one step ago, and the difference is made up afterwards. Only
    when the coherence has leapt so far that powers of the quotient could overflow is the pass repeated.
    """
    gradient, coherence = _power_product(vectors, exponent - 1, guess)
    excess = (exponent - 1) * math.log(coherence / guess) if coherence > 0 else 0.0
    if excess > LARGEST_EXCESS:
        gradient, _ = _power_product(vectors, exponent - 1, coherence)
    else:
        gradient *= math.exp(-excess)
    gradient -= (gradient * vectors).sum(dim=1, keepdim=True) * vectors
    return gradient, coherence


def _power_product(vectors: torch.Tensor, power: int, scale: float) -> tuple[torch.Tensor, float]:
    """(G / scale)^power V without the diagonal, panel by panel, and the coherence of the rows of V."""
    product = torch.empty_like(vectors)
    coherence = 0.0
    rows = _panel_rows(len(vectors))
    for start in range(0, len(vectors), rows):
        stop = min(start + rows, len(vectors))
        weights, largest = gram_power_panel(vectors, start, stop, power, scale)
        torch.matmul(weights, vectors, out=product[start:stop])
        coherence = max(coherence, largest)
    return product, coherence


def _adam_step(
    vectors: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor, count: int, rate: float
) -> None:
    """One Adam step in place, after which the rows are unit vectors again."""
    beta1, beta2 = ADAM_BETAS
    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = second.sqrt().div_(math.sqrt(1 - beta2**count)).add_(ADAM_EPS)
    vectors.addcdiv_(first, denominator, value=-rate / (1 - beta1**count))
    normalize(vectors, dim=1, out=vectors)


def _step_size(k: int, d: int) -> float:
    """Adam's first step. Coordinates are of size 1/sqrt(d); as k nears d, ever smaller steps upset a nearly tight frame."""
    return min(LARGEST_STEP, STEP_SLOPE * (1 - d / k)) / math.sqrt(d)


def _exponent(step: int, steps: int) -> int:
    """Even exponent of this step on the geometric ramp; even, so that G^(p-1) carries the sign by itself."""
    return 2 * round(FIRST_EXPONENT * (LAST_EXPONENT / FIRST_EXPONENT) ** (step / steps) / 2)


def _panel_rows(k: int) -> int:
    return max(8, min(k, PANEL_ELEMENTS // k))


def _set_flush_denormal(mode: bool) -> bool:
    """Set the CPU's flush-to-zero mode and return the mode before: powers of small cosines are denormal, hence slow."""
    before = float(torch.tensor(1e-40) * torch.tensor(1.0)) == 0.0
    torch.set_flush_denormal(mode)
    return before


def _validate(k: int, d: int, steps: int = 1, seed: int = 0) -> None:
    if k < 2:
        raise RepcapError(f"k = {k}: a packing needs at least two vectors")
    if d < 1:
        raise RepcapError(f"d = {d}: the dimension must be at least 1")
    if steps < 1:
        raise RepcapError(f"steps = {steps}: give at least one step")
    if seed < 0:
        raise RepcapError(f"seed = {seed}: a seed must not be negative")
