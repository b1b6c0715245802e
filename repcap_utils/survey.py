"""Measured models as data: epsilon, the histogram of all cosines, and what common directions contribute."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repcap_utils import __version__, embeddings, isotropy, models, paths, similarity, tables
from repcap_utils.errors import RepcapError

EPSILON = paths.SURVEY / "epsilon.csv"
HISTOGRAMS = paths.SURVEY / "histograms.csv"
ISOTROPY = paths.SURVEY / "isotropy.csv"

BINS, RANGE = 200, (-1.0, 1.0)
COMPONENTS = (0, 1, 4, 16)

_KEYS = {EPSILON: ["name"], HISTOGRAMS: ["name", "bin"], ISOTROPY: ["name", "centred", "components"]}


def measure(embedding: embeddings.Embedding) -> dict[str, object]:
    """One row of epsilon.csv: what the embedding is and the exact moments of its pairwise cosines (arXiv 2606.02765, sec. 2)."""
    moments = similarity.cosine_moments(embedding.weight)
    return {
        "name": embedding.name,
        "V": embedding.weight.shape[0],
        "d_model": embedding.d_model,
        "storage": embedding.storage,
        "tied": {True: "yes", False: "no", None: "unknown"}[embedding.tied],
        "tensor": embedding.provenance.get("tensor", ""),
        "file": embedding.provenance.get("file", ""),
        "sha256": embedding.provenance.get("sha256", ""),
        "mean": moments.mean,
        "std": moments.std,
        "epsilon": moments.epsilon,
        "pairs": moments.pairs,
        "zero_rows": moments.zero_rows,
        "duplicate_rows": moments.duplicate_rows,
        "version": __version__,
    }


def read(store: Path = EPSILON) -> pd.DataFrame:
    """The stored rows of EPSILON, HISTOGRAMS or ISOTROPY.

    Raises:
        RepcapError: the file is missing.
    """
    if not store.is_file():
        raise RepcapError(f"no {store}: restore it from git, or run `make survey`")
    return tables.read(store)


def keep(store: Path, rows: Sequence[dict[str, object]]) -> pd.DataFrame:
    """Put rows into a store in place of those with the same key, atomically; return all of it.

    Floats are stored to eight decimals: further digits differ between processors.
    """
    key = _KEYS[store]
    table = pd.DataFrame(rows)
    with paths.locked(store):
        if store.is_file():
            old = read(store)
            replaced = old[key].apply(tuple, axis=1).isin(set(table[key].apply(tuple, axis=1)))
            table = pd.concat([old[~replaced], table]) if not replaced.all() else table
        table = table.sort_values(key, ignore_index=True)
        paths.write_text(store, table.to_csv(index=False, lineterminator="\n", float_format="%.8f"))
    return table


def histogram_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    """Rows of histograms.csv: counts of all V(V-1)/2 cosines in 200 bins over [-1, 1], those that are not zero."""
    counts = similarity.cosine_histogram(embedding.weight, BINS, RANGE).counts
    return [{"name": embedding.name, "bin": int(i), "count": int(counts[i])} for i in np.flatnonzero(counts)]


def edges() -> np.ndarray:
    """Edges of the bins of histograms.csv, 201 values."""
    return np.linspace(*RANGE, BINS + 1)


def isotropy_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    """Rows of isotropy.csv: the moments as they are, after centring, and after removing principal components too."""
    return [
        {
            "name": embedding.name,
            "centred": "yes" if entry.centred else "no",
            "components": entry.components,
            "mean": entry.moments.mean,
            "std": entry.moments.std,
            "epsilon": entry.moments.epsilon,
        }
        for entry in isotropy.epsilon_profile(embedding.weight, COMPONENTS)
    ]


def run() -> Iterator[str]:
    """Measure every default model that is here into all three stores; yield a line for each as it finishes."""
    for name, model in models.registry().items():
        if not model.is_present:
            yield f"{name}: SKIPPED: its weights are not here; run `repcap models fetch {name}`"
            continue
        embedding = embeddings.load(name, tokens=False)
        row = measure(embedding)
        keep(EPSILON, [row])
        keep(ISOTROPY, isotropy_rows(embedding))
        keep(HISTOGRAMS, histogram_rows(embedding))
        yield f"{name}: epsilon {row['epsilon']:.5f}"
