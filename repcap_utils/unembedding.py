"""The embedding E and the unembedding U of an untied model: the same token's two vectors, and both pairwise distributions.

Figures 9 and 10 of arXiv 2606.02765 (appendix C).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repcap_utils import __version__, embeddings, paths, similarity, stores, survey
from repcap_utils.errors import RepcapError

STATISTICS = paths.SURVEY / "unembedding.csv"
HISTOGRAMS = paths.SURVEY / "unembedding_histograms.csv"

SAME_TOKEN, OTHER_TOKENS, OF_E, OF_U = ("same token", "other tokens", "embedding", "unembedding")
"""The four sets of cosines: cos(e_i, u_i); cos(e_i, u_j) for i != j; cos(e_i, e_j) and cos(u_i, u_j) for i < j."""


@dataclass(frozen=True)
class CrossMoments:
    """Moments of the cosines cos(e_i, u_j) of two matrices over all i != j; `std` is the population standard deviation."""

    mean: float
    std: float
    pairs: int


def token_cosines(weight: Tensor, unembedding: Tensor) -> np.ndarray:
    """cos(e_i, u_i) of each token that both matrices have (V x d and V' x d), float64; NaN where a row is zero.

    Raises:
        RepcapError: the matrices have different widths.
    """
    e, u = _shared(weight, unembedding)
    size = similarity.block_rows(e.shape[1])
    return torch.cat([_cosines(a, b) for a, b in zip(e.split(size), u.split(size), strict=True)]).numpy()


def cross_moments(weight: Tensor, unembedding: Tensor) -> CrossMoments:
    """Moments of cos(e_i, u_j) over all i != j, from sums of d x d matrices: O(V d^2), never V x V.

    The sum over all i, j is (sum e).(sum u), that of the squares the inner product of E^T E and U^T U; the same token's
    cosines are then taken out.

    Raises:
        RepcapError: see `token_cosines` and `similarity.unit_rows`; no pair is left.
    """
    e, u = (similarity.unit_rows(matrix) for matrix in _shared(weight, unembedding))
    own = token_cosines(weight, unembedding)
    own = own[np.isfinite(own)]
    pairs = len(e) * len(u) - len(own)
    if pairs < 1:
        raise RepcapError("the two matrices have no two different tokens with a direction; pass larger ones")
    (sum_e, gram_e), (sum_u, gram_u) = _sums(e), _sums(u)
    mean = (float(sum_e @ sum_u) - own.sum()) / pairs
    square = (float((gram_e * gram_u).sum()) - (own**2).sum()) / pairs
    return CrossMoments(mean, math.sqrt(max(square - mean**2, 0.0)), pairs)


def measure(embedding: embeddings.Embedding) -> None:
    """Store the statistics and the histograms of an untied model.

    Raises:
        RepcapError: the model has no unembedding of its own.
    """
    stores.keep(STATISTICS, statistics_rows(embedding))
    stores.keep(HISTOGRAMS, histogram_rows(embedding))


def statistics_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    """Rows of unembedding.csv: count, mean, standard deviation and epsilon of each of the four sets of cosines.

    Raises:
        RepcapError: the model has no unembedding of its own.
    """
    head = _head(embedding)
    own = token_cosines(embedding.weight, head)
    own = own[np.isfinite(own)]
    cross = cross_moments(embedding.weight, head)
    e, u = similarity.cosine_moments(embedding.weight), similarity.cosine_moments(head)
    found = {
        SAME_TOKEN: (len(own), own.mean(), own.std()),
        OTHER_TOKENS: (cross.pairs, cross.mean, cross.std),
        OF_E: (e.pairs, e.mean, e.std),
        OF_U: (u.pairs, u.mean, u.std),
    }
    return [
        {
            "name": embedding.name,
            "V": len(embedding.weight),
            "d_model": embedding.d_model,
            "cosines": which,
            "count": count,
            "mean": float(mean),
            "std": float(std),
            "epsilon": float(mean + 2 * std),
            "version": __version__,
        }
        for which, (count, mean, std) in found.items()
    ]


def histogram_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    """Rows of unembedding_histograms.csv: counts in the bins of `survey.edges()`, of three of the sets of cosines.

    Raises:
        RepcapError: the model has no unembedding of its own.
    """
    head = _head(embedding)
    own = token_cosines(embedding.weight, head)
    counts = {
        SAME_TOKEN: np.histogram(own[np.isfinite(own)], survey.edges())[0],
        OF_E: similarity.cosine_histogram(embedding.weight, survey.BINS, survey.RANGE).counts,
        OF_U: similarity.cosine_histogram(head, survey.BINS, survey.RANGE).counts,
    }
    return [
        {"name": embedding.name, "cosines": which, "bin": int(i), "count": int(count[i])}
        for which, count in counts.items()
        for i in np.flatnonzero(count)
    ]


def _head(embedding: embeddings.Embedding) -> Tensor:
    if embedding.unembedding is None:
        raise RepcapError(f"{embedding.name} has no unembedding of its own to compare; choose an untied model")
    return embedding.unembedding


def _shared(weight: Tensor, unembedding: Tensor) -> tuple[Tensor, Tensor]:
    """Both matrices cut to the rows that both have: one of them may be padded."""
    if weight.ndim != 2 or unembedding.ndim != 2 or weight.shape[1] != unembedding.shape[1]:
        raise RepcapError(
            f"embedding {tuple(weight.shape)} and unembedding {tuple(unembedding.shape)} differ in width; "
            "cosines between them need the same d"
        )
    rows = min(len(weight), len(unembedding))
    return weight[:rows], unembedding[:rows]


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each row of `a` with the same row of `b` (n x d each), float64; 0 / 0 is NaN."""
    a, b = a.double(), b.double()
    lengths = torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1)
    return ((a * b).sum(dim=1) / lengths).clamp_(-1.0, 1.0)


def _sums(rows: similarity.UnitRows) -> tuple[Tensor, Tensor]:
    """The sum of the unit rows (d) and of their outer products (d x d), float64."""
    total = torch.zeros(rows.d_model, dtype=torch.float64)
    gram = torch.zeros(rows.d_model, rows.d_model, dtype=torch.float64)
    for block in rows.blocks():
        total += block.sum(dim=0)
        gram += block.T @ block
    return total, gram
