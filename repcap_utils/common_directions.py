"""What separates an embedding with a large epsilon from one with a small one: its few common directions, as data.

`python -m repcap_utils.common_directions` measures the default models that the stores in data/survey/ lack: the spectrum of
their unit rows, epsilon after removing more and more directions, what facts of the tokens go with the directions, and
epsilon of normal rows that share nothing with the stored ones but mean and covariance.
"""

import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch

from repcap_utils import __version__, embeddings, isotropy, models, paths, similarity, stores, sweep, tokens
from repcap_utils.errors import RepcapError

SPECTRUM = paths.SURVEY / "spectrum.csv"
REMOVAL = paths.SURVEY / "removal.csv"
FACTS = paths.SURVEY / "direction_facts.csv"
SURROGATES = paths.SURVEY / "surrogates.csv"
STORES = (SPECTRUM, REMOVAL, FACTS, SURROGATES)

REMOVED = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of principal directions that are removed besides the mean row."""
DIRECTIONS = ("mean row", "1", "2", "3", "4")
"""The directions that facts of the tokens are held against: the mean row, and principal directions by rank."""
DRAWS, MOST_DRAWN = 5, 32768
AS_STORED, UNIT_LENGTH = ROWS = ("as stored", "unit length")
"""Whose mean and covariance the normal rows have."""

_BINS = 20
_FEWEST = 50
_DIGITS = 8
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPECIAL = re.compile(r"<[^<>]+>|\[[^\[\] ]+\]")


def kind(text: str) -> str:
    """What a token's text is made of: a script by its Unicode name, number, sign, space, byte or special."""
    core = text.strip()
    if not core:
        return "space"
    if _BYTE.fullmatch(core):
        return "byte"
    if _SPECIAL.fullmatch(core):
        return "special"
    letter = next((character for character in core if character.isalpha()), None)
    if letter is not None:
        return unicodedata.name(letter, "UNNAMED").split()[0].capitalize()
    return "number" if any(character.isnumeric() for character in core) else "sign"


def facts(weight: similarity.Matrix, strings: Sequence[str] | None) -> pd.DataFrame:
    """Groups of rows by simple facts, one column each; numbers by twentieths of the rows.

    Columns: length of row; with `strings` (one a row) also row number (the order of a vocabulary goes with frequency),
    characters, leading space and kind of text (those of fewer than 50 tokens together).
    """
    norms = torch.linalg.vector_norm(similarity.as_matrix(weight).to(torch.float64), dim=1).numpy()
    columns = {"length of row": _twentieths(norms)}
    if strings is not None:
        texts = tokens.texts(strings)
        kinds = pd.Series([kind(text) for text in texts])
        columns |= {
            "row number": _twentieths(np.arange(len(texts))),
            "characters": _twentieths(np.array([len(text.strip()) for text in texts])),
            "leading space": np.array([text.startswith(" ") for text in texts]),
            "kind of text": kinds.where(kinds.map(kinds.value_counts()) >= _FEWEST, "other").to_numpy(),
        }
    return pd.DataFrame(columns)


def _twentieths(values: np.ndarray) -> np.ndarray:
    return pd.qcut(pd.Series(values), _BINS, labels=False, duplicates="drop").to_numpy()


def explained(values: np.ndarray, groups: Sequence[object]) -> float:
    """The share of the variance of `values` that lies between groups (eta squared); rows of NaN are left out.

    Raises:
        RepcapError: lists of different lengths, or values that are all the same.
    """
    values, groups = np.asarray(values, dtype=float), np.asarray(groups)
    if values.shape != groups.shape:
        raise RepcapError(f"{values.shape} values and {groups.shape} groups; give one group for each value")
    known = np.isfinite(values)
    table = pd.DataFrame({"value": values[known], "group": groups[known]})
    total = ((table.value - table.value.mean()) ** 2).sum()
    if not total > 0:
        raise RepcapError("the values are all the same; there is no variance to explain")
    between = table.groupby("group").value.agg(["mean", "size"])
    return float((between["size"] * (between["mean"] - table.value.mean()) ** 2).sum() / total)


def surrogate_epsilon(mean: np.ndarray, covariance: np.ndarray, rows: int, seed: int) -> float:
    """Epsilon of normal rows (rows x d) with this mean (d values) and covariance (d x d)."""
    values, vectors = np.linalg.eigh(covariance)
    generator = np.random.default_rng(np.random.SeedSequence([seed, rows, len(mean)]))
    scale = (vectors * np.sqrt(np.maximum(values, 0))).T
    drawn = generator.standard_normal((rows, len(mean))) @ scale + mean
    return similarity.cosine_moments(drawn).epsilon


def spectrum_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    found = isotropy.spectrum(embedding.weight)
    first = {"rank": 0, "value": found.mean_square}
    ranked = [{"rank": i, "value": float(value)} for i, value in enumerate(found.eigenvalues, start=1)]
    return [{"name": embedding.name, "V": found.rows} | row for row in (first, *ranked)]


def removal_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    steps = isotropy.epsilon_profile(embedding.weight, [count for count in REMOVED if count < embedding.d_model])
    return [
        {
            "name": embedding.name,
            "centred": "yes" if step.centred else "no",
            "components": step.components,
            "mean": step.moments.mean,
            "std": step.moments.std,
            "epsilon": step.moments.epsilon,
        }
        for step in steps
    ]


def fact_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    along = isotropy.projections(embedding.weight, len(DIRECTIONS) - 1).numpy()
    table = facts(embedding.weight, embedding.tokens)
    return [
        {
            "name": embedding.name,
            "direction": direction,
            "fact": fact,
            "groups": table[fact].nunique(),
            "share": explained(along[:, column], table[fact]),
        }
        for column, direction in enumerate(DIRECTIONS)
        for fact in table
    ]


def surrogate_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    rows = similarity.unit_rows(embedding.weight)
    count = min(len(rows), MOST_DRAWN)
    found = []
    for which in ROWS:
        mean, covariance = _mean_and_covariance(rows, which == UNIT_LENGTH)
        found += [
            {
                "name": embedding.name,
                "rows": which,
                "seed": seed,
                "drawn": count,
                "epsilon": surrogate_epsilon(mean, covariance, count, seed),
            }
            for seed in range(DRAWS)
        ]
    return found


def _mean_and_covariance(rows: similarity.UnitRows, unit: bool) -> tuple[np.ndarray, np.ndarray]:
    def blocks() -> Iterator[torch.Tensor]:
        return rows.blocks() if unit else (rows.raw(*span).to(torch.float64) for span in rows.spans())

    mean = sum(block.sum(dim=0) for block in blocks()) / len(rows)
    covariance = sum((block - mean).T @ (block - mean) for block in blocks()) / len(rows)
    return mean.numpy(), covariance.numpy()


def measure(embedding: embeddings.Embedding) -> None:
    """Put an embedding's rows into the four stores, in place of its earlier ones."""
    origin = {"version": __version__, "commit": sweep.commit()}
    for store, rows in zip(STORES, (spectrum_rows, removal_rows, fact_rows, surrogate_rows), strict=True):
        stores.keep(store, [row | origin for row in rows(embedding)], digits=_DIGITS)


def main() -> None:
    """Measure the default models that are on this machine and not in all of the stores."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name, model in models.registry().items():
        if all(name in set(stores.read(store)["name"]) for store in STORES):
            logging.info("%s: stored before", name)
        elif not model.is_present:
            logging.info("%s: not on this machine; run `repcap models fetch %s`", name, name)
        else:
            measure(embeddings.load(name))
            logging.info("%s: measured", name)


if __name__ == "__main__":
    main()
