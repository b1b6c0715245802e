"""What the right tail of the cosines is made of: nearest neighbours, word variants, word pairs, one analogy.

Figures 3 and 4 of arXiv 2606.02765: most tokens that are the nearest neighbour of many others are common words, and their
neighbours are variants of them. What counts as a variant is defined here (`kind`); the paper gives no definition.
"""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from repcap_utils import __version__, embeddings, models, paths, similarity, stores, survey, tokens
from repcap_utils.errors import RepcapError

PRIMARY = paths.SURVEY / "primary_tokens.csv"
DEGREES = paths.SURVEY / "primary_degrees.csv"
TAIL = paths.SURVEY / "tail_pairs.csv"
PAIRS = paths.SURVEY / "word_pairs.csv"
ANALOGY = paths.SURVEY / "analogy.csv"

SAME_WORD, SAME_STEM, NOT_WORDS, OTHER_WORDS = KINDS = ("same word", "same stem", "not both words", "other words")
"""Kinds of token pairs, see `kind`."""

WORD_PAIRS = (("yes", "no"), ("cat", "dog"), ("car", "bus"), ("school", "class"), ("quick", "un"))
"""The word pairs of figure 4; the last one is its unrelated baseline."""

FORMS = {"leading space": " ", "bare": ""}
"""A word may be a token with or without the space before it: what stands before the word in each form."""

PRIMARY_KEPT, VARIANTS_KEPT = 20, 12
TOP = 40
SAMPLE = 4096
MOST_ROWS = 100_000
"""Above this many tokens the neighbours of a random sample are looked for, not those of all."""

_ENDINGS = ("s", "es", "d", "ed", "ing", "er", "ers", "r", "ly", "y")
_SHORTEST_STEM = 3
_ROWS = 1024
_MOST_PAIRS = 20_000_000
_LEFT_OUT = re.compile("king|woman|women")


# --- words and their variants -----------------------------------------------------------------------------------------


def word(text: str) -> str:
    """The word in a token's text, without spaces around it and in lower case; empty where it is no word (letters alone)."""
    core = text.strip().casefold()
    return core if core.isalpha() else ""


@lru_cache(maxsize=2**18)
def stems(word: str) -> frozenset[str]:
    """The word itself and what may be left of it without an English ending (-s, -ed, -ing, -er, -ly and the like).

    At least three letters stay. A dropped e is restored (making: make), a doubled consonant halved (running: run) and
    -ies read as -y (cities: city). It is a rule of spelling: it errs on words such as butter (butt).
    """
    found = {word}
    for ending in _ENDINGS:
        rest = word.removesuffix(ending)
        if rest == word or len(rest) < _SHORTEST_STEM:
            continue
        found |= {rest, f"{rest}e"} if ending[0] in "eiy" else {rest}
        if ending[0] in "eiy" and len(rest) > _SHORTEST_STEM and rest[-1] == rest[-2]:
            found.add(rest[:-1])
        if rest.endswith("i"):
            found.add(f"{rest[:-1]}y")
    return frozenset(found)


def kind(first: str, second: str) -> str:
    """How two tokens' texts are related, one of `KINDS`.

    Same word: equal up to case and spaces around. Same stem: not that, and their `stems` have one in common. Both together
    are the lexical variants. Not both words: at least one is not made of letters alone.
    """
    first, second = word(first), word(second)
    if not first or not second:
        return NOT_WORDS
    if first == second:
        return SAME_WORD
    return OTHER_WORDS if stems(first).isdisjoint(stems(second)) else SAME_STEM


# --- primary tokens and the tail --------------------------------------------------------------------------------------


def pairs_above(weight: Tensor, above: float, *, most: int = _MOST_PAIRS) -> tuple[np.ndarray, np.ndarray]:
    """All pairs i < j of rows of `weight` (V x d) whose cosine exceeds `above`: cosines [n] and row numbers [n, 2].

    Raises:
        RepcapError: more than `most` pairs do; see also `similarity.unit_rows`.
    """
    rows = similarity.unit_rows(weight)
    unit = torch.cat([block.to(rows.tile_dtype) for block in rows.blocks()])
    values, places, found = [], [], 0
    for start in range(0, len(unit), _ROWS):
        cosines = unit[start : start + _ROWS] @ unit[start:].T
        at = torch.nonzero((cosines > above).triu_(1))
        found += len(at)
        if found > most:
            raise RepcapError(f"more than {most:,} pairs have a cosine above {above:g}; choose a higher value")
        values.append(cosines[at[:, 0], at[:, 1]])
        places.append(rows.index[at + start])
    return torch.cat(values).numpy(), torch.cat(places).numpy()


def tail_edge(counts: np.ndarray, edges: np.ndarray, rows: int) -> float:
    """Where the right tail begins: the highest edge of a histogram above which at least `rows` pairs lie, one a token."""
    above = np.append(np.cumsum(counts[::-1])[::-1], 0)
    return float(edges[np.flatnonzero(above >= rows)[-1]])


def nearest_of(weight: Tensor, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and row number of the nearest neighbour of some rows [n] of `weight` (V x d), without forming V x V.

    Raises:
        RepcapError: see `similarity.unit_rows`.
    """
    chosen = _normalised(weight[torch.from_numpy(rows)]).float()
    best = torch.full((len(rows),), -torch.inf)
    where = torch.full((len(rows),), -1)
    for start, block in zip(range(0, len(weight), _ROWS), weight.split(_ROWS), strict=True):
        cosines = chosen @ _normalised(block).float().T
        own = np.flatnonzero((rows >= start) & (rows < start + len(block)))
        cosines[own, rows[own] - start] = -torch.inf
        value, column = cosines.max(dim=1)
        better = value > best
        best, where = torch.where(better, value, best), torch.where(better, column + start, where)
    return best.numpy(), where.numpy()


def primary_rows(name: str, strings: Sequence[str], values: np.ndarray, nearest: np.ndarray) -> list[dict[str, object]]:
    """Rows of primary_tokens.csv: the tokens that are the nearest neighbour of the most others, and of the most variants.

    Args:
        name: of the model.
        strings: V tokens as stored.
        values: V cosines to the nearest neighbour.
        nearest: V row numbers of the nearest neighbour, -1 where a row has none.
    """
    shown = tokens.labels(strings)
    counts, same_word, same_stem = _degrees(tokens.texts(strings), nearest)
    largest = np.argsort(-counts, kind="stable")[:PRIMARY_KEPT]
    most_variants = np.argsort(-same_word - same_stem, kind="stable")[:PRIMARY_KEPT]
    found = []
    for row in dict.fromkeys([*largest.tolist(), *most_variants.tolist()]):
        followers = np.flatnonzero(nearest == row)
        closest = followers[np.argsort(-values[followers], kind="stable")][:VARIANTS_KEPT]
        found.append(
            {
                "name": name,
                "row": row,
                "token": shown[row],
                "count": int(counts[row]),
                "same_word": int(same_word[row]),
                "same_stem": int(same_stem[row]),
                "variants": " ".join(shown[other] for other in closest),
                "version": __version__,
            }
        )
    return found


def degree_rows(name: str, strings: Sequence[str], nearest: np.ndarray) -> list[dict[str, object]]:
    """Rows of primary_degrees.csv: how many tokens are the nearest neighbour of just so many others, and of which kinds."""
    counts, same_word, same_stem = _degrees(tokens.texts(strings), nearest)
    return [
        {
            "name": name,
            "count": int(count),
            "tokens": int((counts == count).sum()),
            "same_word": int(same_word[counts == count].sum()),
            "same_stem": int(same_stem[counts == count].sum()),
            "version": __version__,
        }
        for count in np.unique(counts)
    ]


def tail_rows(
    name: str, which: str, strings: Sequence[str], values: np.ndarray, places: np.ndarray
) -> list[dict[str, object]]:
    """Rows of tail_pairs.csv: pairs (cosines [n], row numbers [n, 2]) by bin of `survey.edges()` and by kind."""
    read = tokens.texts(strings)
    last = survey.BINS - 1
    bins = np.clip(np.searchsorted(survey.edges(), values, side="right") - 1, 0, last)
    kinds = np.array([KINDS.index(kind(read[i], read[j])) for i, j in places.tolist()], dtype=np.int64)
    keys, counts = np.unique(bins * len(KINDS) + kinds, return_counts=True)
    return [
        {
            "name": name,
            "pairs": which,
            "bin": int(key) // len(KINDS),
            "kind": KINDS[key % len(KINDS)],
            "count": int(count),
            "version": __version__,
        }
        for key, count in zip(keys, counts, strict=True)
    ]


# --- words and arithmetic ---------------------------------------------------------------------------------------------


def word_pair_rows(embedding: embeddings.Embedding) -> list[dict[str, object]]:
    """Rows of word_pairs.csv: the cosine of each of `WORD_PAIRS` in each form in which both words are tokens."""
    row_of = _row_of(_strings(embedding))
    rows = []
    for first, second in WORD_PAIRS:
        for form, before in FORMS.items():
            places = [row_of.get(before + first), row_of.get(before + second)]
            if None in places:
                continue
            cosine = float(_normalised(embedding.weight[places]).prod(dim=0).sum())
            rows.append(
                {
                    "name": embedding.name,
                    "first": first,
                    "second": second,
                    "form": form,
                    "cosine": cosine,
                    "version": __version__,
                }
            )
    return rows


def analogy_rows(embedding: embeddings.Embedding, top: int = TOP) -> list[dict[str, object]]:
    """Rows of analogy.csv: the tokens of largest cosine to king - man + woman, by form, closest first.

    Tokens that contain king, woman or women in any case are left out, as in the paper. The three vectors are added as
    they are, without normalisation.
    """
    strings = _strings(embedding)
    read, shown = tokens.texts(strings), tokens.labels(strings)
    row_of = _row_of(strings)
    allowed = np.array([not _LEFT_OUT.search(text.casefold()) for text in read])
    rows = []
    for form, before in FORMS.items():
        places = [row_of.get(before + name) for name in ("king", "man", "woman")]
        if None in places:
            continue
        king, man, woman = embedding.weight[places].double()
        cosines = np.where(allowed, _cosines(embedding.weight, king - man + woman), -np.inf)
        # Equal embeddings keep the order of their rows: beyond six decimals their cosines differ by rounding.
        order = np.argsort(-np.round(cosines, 6), kind="stable")[: min(top, allowed.sum())]
        for rank, row in enumerate(order, start=1):
            rows.append(
                {
                    "name": embedding.name,
                    "form": form,
                    "rank": rank,
                    "row": int(row),
                    "token": shown[row],
                    "cosine": float(cosines[row]),
                    "version": __version__,
                }
            )
    return rows


def measure_words(embedding: embeddings.Embedding) -> None:
    """Store the word pairs and the analogy of a model; what it has no tokens for is left out.

    Raises:
        RepcapError: the source has no token strings.
    """
    for store, rows in ((PAIRS, word_pair_rows(embedding)), (ANALOGY, analogy_rows(embedding))):
        if rows:
            stores.keep(store, rows)


def measure_neighbours(embedding: embeddings.Embedding, edge: float | None) -> None:
    """Store the primary tokens of a model, and the kinds of its nearest neighbours and of its pairs above `edge`.

    All V x V cosines are formed twice, in tiles: about a minute for 49,152 x 576 on one core.

    Args:
        edge: lower end of the pairs whose kinds are counted; None for none, which saves one of the two passes.

    Raises:
        RepcapError: the source has no token strings; too many pairs lie above `edge`.
    """
    name, strings = embedding.name, _strings(embedding)
    values, nearest = (found[:, 0].numpy() for found in similarity.nearest_neighbours(embedding.weight))
    has = np.flatnonzero(nearest >= 0)
    links = np.stack([has, nearest[has]], axis=1)
    tail = [] if edge is None else tail_rows(name, "tail", strings, *pairs_above(embedding.weight, edge))
    stores.keep(TAIL, [*tail_rows(name, "nearest", strings, values[has], links), *tail])
    stores.keep(PRIMARY, primary_rows(name, strings, values, nearest))
    stores.keep(DEGREES, degree_rows(name, strings, nearest))


def measure_sample(embedding: embeddings.Embedding, seed: int = 0) -> None:
    """Store the kinds of the nearest neighbours of `SAMPLE` random tokens: for vocabularies too large for V x V.

    Raises:
        RepcapError: the source has no token strings.
    """
    strings = _strings(embedding)
    draws = np.random.default_rng(seed).permutation(len(strings))[:SAMPLE]
    values, nearest = nearest_of(embedding.weight, draws)
    links = np.stack([draws, nearest], axis=1)
    stores.keep(TAIL, tail_rows(embedding.name, "nearest, sample", strings, values, links))


def run(names: Sequence[str], *, large: bool = False) -> Iterator[str]:
    """Measure registered models into all stores; yield a line for each as it finishes.

    Args:
        large: look for the neighbours of all tokens in vocabularies of more than `MOST_ROWS` too, not of a sample: a quarter
            of an hour for 262,144 x 640 on two cores.
    """
    histograms = survey.read(survey.HISTOGRAMS)
    for name in names:
        if not models.get(name).is_present:
            yield f"{name}: SKIPPED: its weights are not here; run `repcap models fetch {name}`"
            continue
        embedding = embeddings.load(name)
        measure_words(embedding)
        if len(embedding.weight) > MOST_ROWS and large:
            measure_neighbours(embedding, None)
            yield f"{name}: neighbours are stored"
            continue
        if len(embedding.weight) > MOST_ROWS:
            measure_sample(embedding)
            yield f"{name}: more than {MOST_ROWS:,} tokens; the neighbours of {SAMPLE:,} of them are stored"
            continue
        rows = histograms[histograms["name"] == name]
        counts = np.zeros(survey.BINS, dtype=np.int64)
        counts[rows["bin"]] = rows["count"]
        edge = tail_edge(counts, survey.edges(), len(embedding.weight))
        measure_neighbours(embedding, edge)
        yield f"{name}: neighbours and the pairs above {edge:.2f} are stored"


def _degrees(read: Sequence[str], nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of V tokens: of how many it is the nearest neighbour, and how many of these are the same word or stem."""
    has = np.flatnonzero(nearest >= 0)
    kinds = np.array([kind(read[i], read[nearest[i]]) for i in has])
    return tuple(
        np.bincount(nearest[has[chosen]], minlength=len(read))
        for chosen in (np.ones(len(has), dtype=bool), kinds == SAME_WORD, kinds == SAME_STEM)
    )


def _strings(embedding: embeddings.Embedding) -> list[str]:
    if embedding.tokens is None:
        is_remote = embedding.provenance.get("source") == "hub"
        fix = "name a repository that has them" if is_remote else "put them beside the weights"
        raise RepcapError(f"{embedding.name} has no token strings: no tokenizer.json, no vocab file; {fix}")
    return embedding.tokens


def _row_of(strings: Sequence[str]) -> dict[str, int]:
    """The first row of each text."""
    found: dict[str, int] = {}
    for row, text in enumerate(tokens.texts(strings)):
        found.setdefault(text, row)
    return found


def _cosines(weight: Tensor, vector: Tensor) -> np.ndarray:
    """Cosines of all rows of `weight` (V x d) with one float64 vector; 0 for a zero row."""
    direction = vector / torch.linalg.vector_norm(vector)
    return torch.cat([_normalised(rows) @ direction for rows in weight.split(_ROWS)]).numpy()


def _normalised(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows.double())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = sys.argv[1:]
    named = [argument for argument in arguments if argument != "--large"]
    for line in run(named or ["smollm2-135m", "gemma-3-270m"], large="--large" in arguments):
        logging.info(line)
