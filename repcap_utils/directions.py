"""The few directions behind a large epsilon: their spectrum, what is left without them, what they are, a Gaussian stand-in.

`python -m repcap_utils.directions [MODEL ...]` measures the default models whose weights are here into data/survey/; a model
whose rows are stored is skipped unless it is named.
"""

import logging
import re
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from repcap_utils import __version__, embeddings, models, paths, similarity, spectrum, stores, survey, sweep, tokens
from repcap_utils.errors import RepcapError

SPECTRUM = paths.SURVEY / "spectrum.csv"
REMOVAL = paths.SURVEY / "removal.csv"
FACTS = paths.SURVEY / "direction_facts.csv"
GAUSSIAN = paths.SURVEY / "gaussian_rows.csv"

DIGITS = 10
"""Decimals of the floats in these stores: epsilon is rebuilt from sums over directions."""

BANDS = (*range(1, 17), 32, 64, 128, 256, 512)
"""The last direction of each band of spectrum.csv; the last band ends with d."""

COUNTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""How many principal directions are removed besides the mean row."""

TOP = 4
"""How many principal directions are set against facts of tokens, besides that of the mean."""

MEAN = "mean"
TOGETHER = "all together"
BINS = 20
FEWEST = 100
LONGEST = 16

BOTH, MEAN_ALONE, COVARIANCE_ALONE, DRAWN = ("mean and covariance", "mean alone", "covariance alone", "drawn")
DRAWS, DRAWN_ROWS = 5, 20_000

_LONE_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPECIAL = re.compile(
    r"\[unused\d+\]|<unused\d+>|<\|[^|]*\|>|\[(PAD|UNK|CLS|SEP|MASK|multimodal)\]"
    r"|</?(s|pad|eos|bos|unk|mask|2mass|\[@BOS@\]|start_of_turn|end_of_turn|start_of_image|end_of_image|image_soft_token)>"
)

Row = dict[str, object]


def measure(embedding: embeddings.Embedding) -> None:
    """Store the rows of one model in all four tables, in place of earlier ones.

    Raises:
        RepcapError: see `spectrum.of_rows`; a store that cannot be read or written.
    """
    origin = {"version": __version__, "commit": sweep.commit()}
    tables = {SPECTRUM: spectrum_rows, REMOVAL: removal_rows, FACTS: fact_rows, GAUSSIAN: gaussian_rows}
    for store, rows in tables.items():
        if store != FACTS or embedding.tokens is not None:
            stores.keep(store, [row | origin for row in rows(embedding)], digits=DIGITS)


def spectrum_rows(embedding: embeddings.Embedding) -> list[Row]:
    """Rows of spectrum.csv: sums over bands of principal directions of the unit rows about the origin."""
    found = spectrum.of_rows(embedding.weight)
    d = embedding.d_model
    lasts = [*(last for last in BANDS if last < d), d]
    return [
        {
            "name": embedding.name,
            "first": first + 1,
            "last": last,
            "eigenvalues": found.eigenvalues[first:last].sum(),
            "squares": (found.eigenvalues[first:last] ** 2).sum(),
            "along_mean": found.along_mean[first:last].sum(),
            "rows": found.rows,
        }
        for first, last in zip([0, *lasts], lasts, strict=False)
    ]


def removal_rows(embedding: embeddings.Embedding) -> list[Row]:
    """Rows of removal.csv: moments as stored, then without the mean row and more and more principal directions."""
    return survey.isotropy_rows(embedding, COUNTS)


def gaussian_rows(embedding: embeddings.Embedding) -> list[Row]:
    """Rows of gaussian_rows.csv: normal rows with the mean and the covariance of the stored rows, or with one of them.

    BOTH, MEAN_ALONE (the covariance replaced by an isotropic one of the same trace) and COVARIANCE_ALONE (no mean) are
    exact for rows without number (`spectrum.of_gaussian`); DRAWN are seeded draws with both, which check the first.
    """
    mean, covariance = raw_moments(embedding.weight)
    d = len(mean)
    isotropic = np.eye(d) * np.trace(covariance) / d
    exact = {
        BOTH: spectrum.of_gaussian(mean, covariance),
        MEAN_ALONE: spectrum.of_gaussian(mean, isotropic),
        COVARIANCE_ALONE: spectrum.of_gaussian(np.zeros(d), covariance),
    }
    found = [(kind, "", moments) for kind, moments in exact.items()]
    values, vectors = np.linalg.eigh(covariance)
    root = np.sqrt(values.clip(min=0.0))[:, None] * vectors.T
    for seed in range(DRAWS):
        draw = mean + np.random.default_rng(seed).normal(size=(DRAWN_ROWS, d)) @ root
        found.append((DRAWN, seed, similarity.cosine_moments(torch.from_numpy(draw))))
    return [
        {
            "name": embedding.name,
            "kept": kind,
            "seed": seed,
            "mean": moments.mean,
            "std": moments.std,
            "epsilon": moments.epsilon,
        }
        for kind, seed, moments in found
    ]


def raw_moments(weight: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean [d] and covariance [d, d] of the non-zero rows of `weight` (V x d) as stored, float64."""
    rows = similarity.unit_rows(weight)
    total = torch.zeros(rows.d_model, dtype=torch.float64)
    gram = torch.zeros(rows.d_model, rows.d_model, dtype=torch.float64)
    blocks = [rows.raw(*span) for span in rows.spans()]
    for block in blocks:
        total += block.double().sum(dim=0)
    mean = total / len(rows)
    for block in blocks:
        similarity.add_gram(gram, block.double() - mean)
    whole = gram.triu() + gram.triu(1).T
    return mean.numpy(), (whole / len(rows)).numpy()


# --- what the directions are ------------------------------------------------------------------------------------------


def fact_rows(embedding: embeddings.Embedding) -> list[Row]:
    """Rows of direction_facts.csv: how much of the spread of the unit rows along a direction each fact explains.

    The directions are that of the mean unit row and the strongest principal ones of the unit rows about their mean. A
    fact is a grouping of the tokens; `explained` is eta squared, the variance of the groups' means over the whole
    variance, and for TOGETHER the R squared of all groupings as additive effects.
    """
    rows = similarity.unit_rows(embedding.weight)
    along = projections(rows)
    groups = token_facts([embedding.tokens[i] for i in rows.index.tolist()], rows.norms.numpy() * rows.peaks.numpy())
    share = along.var(axis=0, ddof=0)
    together = explained_together(along.to_numpy(), groups)
    found = []
    for position, direction in enumerate(along.columns):
        values = along[direction].to_numpy()
        for fact in groups.columns:
            found.append((direction, fact, groups[fact].nunique(), explained(values, groups[fact].to_numpy())))
        number = sum(groups[fact].nunique() - 1 for fact in groups.columns) + 1
        found.append((direction, TOGETHER, number, together[position]))
    return [
        {
            "name": embedding.name,
            "direction": direction,
            "variance": share[direction],
            "fact": fact,
            "groups": number,
            "explained": value,
            "tokens": len(rows),
        }
        for direction, fact, number, value in found
    ]


def projections(rows: similarity.UnitRows) -> pd.DataFrame:
    """Unit rows along the direction of their mean and along the TOP principal directions about it [rows, 1 + TOP]."""
    mean, second = spectrum.unit_moments(rows)
    vectors = np.linalg.eigh(second - np.outer(mean, mean))[1][:, ::-1][:, :TOP]
    length = np.linalg.norm(mean)
    axes = torch.from_numpy(np.column_stack([mean / length if length > 0 else mean, vectors]))
    along = torch.cat([block @ axes for block in rows.blocks()]).numpy()
    return pd.DataFrame(along, columns=[MEAN, *(str(i) for i in range(1, along.shape[1]))])


def token_facts(strings: Sequence[str], norms: np.ndarray) -> pd.DataFrame:
    """Simple facts of tokens, in the order of their rows, each as a grouping (integer codes) [tokens, facts].

    Row number and row norm are cut into BINS groups of equal size; scripts with fewer than FEWEST tokens are one group;
    lengths above LONGEST characters too. A row number is a merge rank in byte-pair vocabularies: low ones are frequent.
    """
    text = pd.Series(tokens.texts(strings))
    script = text.map(_script)
    script = script.where(script.map(script.value_counts()) >= FEWEST, "other")
    facts = {
        "row number": _equal_groups(np.arange(len(text))),
        "row norm": _equal_groups(norms),
        "script": pd.factorize(script)[0],
        "length": text.str.replace(_LONE_BYTE, "?", regex=True).str.len().clip(upper=LONGEST),
        "leading space": text.str.startswith(" ").astype(int),
        "lone byte": text.str.contains(_LONE_BYTE).astype(int),
        "unused or special": pd.Series(strings).map(lambda token: _SPECIAL.fullmatch(token) is not None).astype(int),
    }
    return pd.DataFrame({name: np.asarray(codes) for name, codes in facts.items()})


def explained(values: np.ndarray, groups: np.ndarray) -> float:
    """Eta squared: the share of the variance of `values` [n] that lies between `groups` [n]; 0 where nothing varies."""
    series = pd.Series(values)
    means = series.groupby(groups).transform("mean")
    whole = series.var(ddof=0)
    return float(means.var(ddof=0) / whole) if whole > 0 else 0.0


def explained_together(values: np.ndarray, groups: pd.DataFrame) -> np.ndarray:
    """R squared of each column of `values` [n, m] on all groupings [n, facts] as additive effects, by least squares [m]."""
    design = pd.get_dummies(groups.astype("category"), drop_first=True, dtype=float).to_numpy()
    design -= design.mean(axis=0)
    centred = values - values.mean(axis=0)
    left = centred - design @ np.linalg.lstsq(design, centred, rcond=None)[0]
    return 1.0 - (left**2).sum(axis=0) / (centred**2).sum(axis=0)


def _equal_groups(values: np.ndarray) -> np.ndarray:
    """Values cut into BINS groups of equal size, fewer where values repeat; one where all are equal [n]."""
    codes = pd.qcut(values, BINS, labels=False, duplicates="drop")
    return np.nan_to_num(codes).astype(int)


def _script(text: str) -> str:
    """The script of the first letter, by its Unicode name; digits or symbols where there is none."""
    for character in text:
        if character.isalpha():
            return unicodedata.name(character, "OTHER").split()[0].split("-")[0].lower()
    return "digits" if any(character.isdigit() for character in text) else "symbols"


def main(names: Sequence[str] = ()) -> None:
    """Measure the named models, or the default ones that are not stored yet.

    Raises:
        RepcapError: an unknown name; a named model whose weights are not here.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # the last table that a model enters: one that is there is complete
    stored = set(stores.read(GAUSSIAN)["name"])
    for name in names or models.registry():
        if not names and (name in stored or not models.get(name).is_present):
            logging.info("%s: %s", name, "stored" if name in stored else "its weights are not here")
            continue
        measure(embeddings.load(name, unembedding=False))
        logging.info("%s: measured", name)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RepcapError as error:
        sys.exit(str(error))
