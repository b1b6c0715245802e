"""What the shell says of a model or of (d, epsilon): facts as a dict that JSON can hold, and the same facts as lines of text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from repcap_utils import bounds, capacity, isotropy, paths, random_packing, rows, similarity, tables
from repcap_utils.embeddings import Embedding
from repcap_utils.errors import RepcapError
from repcap_utils.similarity import CosineMoments, Matrix
from repcap_utils.texts import aligned, at_least, at_most, group, shown

MEAN_ROW = (0,)
PROFILE = (0, 1, 4, 16)
"""Principal components removed after the mean row; each number costs one more pass over the matrix."""

_HUB_FACTS = ("revision", "traffic", "total_bytes")
_HEADS = {
    "absent": "tied: no head is stored",
    "equal": "tied: a head is stored, and equal in value",
    "different": "untied: a head of its own is stored",
    "not compared": "unknown: a head is stored, or may be; comparing it takes more of the network, which --unembedding does",
    None: "unknown: the source says nothing about a head",
}
_READ, _NO_TOKENIZER = "read", "none beside the weights"
_CLASSES = {1: "1 (above 0.2)", 2: "2 (below 0.1)", None: "none: between the paper's two"}
_KINDS = {
    "zero": "zero",
    "duplicate": "equal to an earlier row",
    "padded": "beyond the tokenizer",
    "near_constant": "near-constant",
    "untrained": "untrained, it seems",
    "flagged": "any of these",
}


def facts(
    embedding: Embedding, *, unembedding: bool = False, components: Sequence[int] = MEAN_ROW, note: str | None = None
) -> dict:
    """All facts of a model, by name; floats are finite.

    Args:
        embedding: the model's matrix and where it came from.
        unembedding: whether to add the facts of the unembedding, under that name.
        components: epsilon is also given without the mean row and each of these numbers of principal components.
        note: why there are no token strings, where there is more to say than that none were found.

    Raises:
        RepcapError: an unembedding is asked for and there is none; see `rows.report`.
    """
    if unembedding and embedding.unembedding is None:
        raise RepcapError(f"{embedding.name} has no unembedding of its own to measure ({_HEADS[embedding.head]})")
    found = _model_facts(embedding, note)
    found |= _matrix_facts(embedding.weight, embedding, components)
    if unembedding:
        found["unembedding"] = _matrix_facts(embedding.unembedding, embedding, components)
    return found


def lines(facts: dict) -> Iterator[str]:
    """The facts as lines, in groups with a heading."""
    origin = f"{facts['format']} {facts['file']}, tensor {facts['tensor']}"
    about = {"read from": origin + (", transposed" if facts["transposed"] else ""), "stored as": facts["storage"]}
    if "revision" in facts:
        about["revision"] = facts["revision"]
        about["network"] = f"{shown(facts['traffic'])} bytes read; all weights are {shown(facts['total_bytes'])}"
    about |= {"head": _head_line(facts), "tokenizer": facts["tokenizer"]}
    yield from group(facts["name"], about | _numbered(facts["notes"]))
    yield from _matrix_lines("embedding", facts, facts["tokenizer"])
    if "unembedding" in facts:
        yield from _matrix_lines("unembedding", facts["unembedding"], facts["tokenizer"])


def nearest_published(d_model: int, epsilon: float, count: int = 3) -> list[dict]:
    """The models of table 1 (arXiv 2606.02765) whose d_model and epsilon differ by the smallest factors.

    None are near an epsilon that is not positive.
    """
    if epsilon <= 0:
        return []
    table = tables.read(paths.PUBLISHED / "models.csv")
    distance = np.hypot(np.log(table["d_model"] / d_model), np.log(table["epsilon"] / epsilon))
    nearest = table.loc[distance.sort_values(kind="stable").index[:count]]
    return [
        {
            "model": row.model,
            "d_model": int(row.d_model),
            "epsilon": float(row.epsilon),
            "capacity": None if np.isnan(row.capacity) else float(row.capacity),
        }
        for row in nearest.itertuples()
    ]


def capacity_facts(d: float, epsilon: float) -> dict:
    """The capacity by each form, and the proved bracket beside it: None where epsilon is no coherence or d is below 2.

    Raises:
        RepcapError: see `capacity.estimate`.
    """
    provable = bounds.bracket(d, epsilon)._asdict() if d >= 2 and 0 < epsilon < 1 else None
    return capacity.estimate(d, epsilon).facts | {"bracket": provable}


def capacity_lines(facts: dict) -> Iterator[str]:
    """The facts of `capacity_facts`, and any before them, as lines."""
    yield from aligned({name: shown(value) for name, value in facts.items() if name != "bracket"})
    yield from aligned(_bracket_lines(facts["bracket"]))


def bounds_facts(d: int, epsilon: float) -> dict:
    """What provably exists at (d, epsilon), what cannot, and other numbers of directions beside them, as log10.

    Raises:
        RepcapError: see `bounds.bracket`.
    """
    found, known = bounds.bracket(d, epsilon), bounds.best_known_capacity(d, epsilon)
    rankin, sidelnikov = float(bounds.rankin_capacity(d, epsilon)), bounds.sidelnikov_capacity(d, epsilon)
    return {
        "d": d,
        "epsilon": epsilon,
        "lower": {
            "log10": found.log10_lower,
            "lines": found.lower,
            "construction": found.construction,
            "coherence": known.coherence,
            "reference": known.reference,
        },
        "upper": {
            "log10": found.log10_upper,
            "lines": found.upper,
            "bound": found.bound,
            "degree": found.degree,
            "reference": bounds.REFERENCES[found.bound],
        },
        "log10_others": {
            "random vectors, median": float(random_packing.log10_capacity(d, epsilon)),
            "greedy": bounds.greedy_capacity(d, epsilon),
            **{f"published form {name}": capacity.FORMS[name].log10_capacity(d, epsilon) for name in ("ratio", "full")},
            f"Sidelnikov's bound, power {sidelnikov.power}": sidelnikov.log10_lines,
            "Rankin's bound": rankin if math.isfinite(rankin) else None,
            "orthoplex bound": math.log10(d * (d + 1) / 2) if d * epsilon**2 < 1 else None,
        },
    }


def bounds_lines(facts: dict) -> Iterator[str]:
    """The facts of `bounds_facts` as lines, in groups with a heading."""
    lower, upper = facts["lower"], facts["upper"]
    least, most = at_least(lower["log10"], lower["lines"]), at_most(upper["log10"], upper["lines"])
    exact = lower["lines"] is not None and lower["lines"] == upper["lines"]
    proved = {
        "exactly"
        if exact
        else "exist at least": f"{least}  {lower['construction']}, coherence {lower['coherence']:.5g}",
        "": lower["reference"],
        "cannot exceed": f"{most}  {upper['bound']}, degree {upper['degree']}",
        " ": upper["reference"],
    }
    yield from group(
        f"directions in d = {facts['d']} dimensions, no |cos| above epsilon = {facts['epsilon']:g}", proved
    )
    others = facts["log10_others"].items()
    yield from group(
        "for comparison", {name: "no bound here" if value is None else _other(name, value) for name, value in others}
    )


# --- facts ------------------------------------------------------------------------------------------------------------


def _model_facts(embedding: Embedding, note: str | None) -> dict:
    hub = {key: embedding.provenance[key] for key in _HUB_FACTS if key in embedding.provenance}
    return {
        "name": embedding.name,
        "format": embedding.provenance["format"],
        "file": embedding.provenance["file"],
        "tensor": embedding.provenance["tensor"],
        "transposed": embedding.provenance["transposed"],
        **hub,
        "storage": embedding.storage,
        "tied": embedding.tied,
        "head": embedding.head,
        "head_rows": embedding.head_rows,
        "vocab_size": embedding.vocab_size,
        "notes": list(embedding.notes),
        "tokenizer": note or (_READ if embedding.tokens is not None else _NO_TOKENIZER),
    }


def _matrix_facts(weight: Matrix, embedding: Embedding, components: Sequence[int]) -> dict:
    """All that is said of one of the matrices of `embedding`."""
    tokens = embedding.tokens if embedding.tokens is not None and len(embedding.tokens) == len(weight) else None
    declared = embedding.vocab_size if tokens is None else None
    # a configuration often counts the padding too: only fewer tokens than rows tell something
    is_told = declared is not None and declared < len(weight)
    report = rows.report(weight, tokens, declared if is_told else None)
    moments, without, d_model = report.moments, report.without, weight.shape[1]
    found = {
        "V": weight.shape[0],
        "d_model": d_model,
        "mean": moments.mean,
        "std": moments.std,
        "epsilon": moments.epsilon,
        "random_floor": similarity.random_floor(d_model),
        "pairs": moments.pairs,
        "zero_rows": moments.zero_rows,
        "duplicate_rows": moments.duplicate_rows,
        "class": 1 if moments.epsilon > 0.2 else 2 if moments.epsilon < 0.1 else None,
        "padding_told_by": "tokenizer" if tokens is not None else "configuration" if is_told else None,
    }
    return (
        found
        | {"without_common_directions": _without_common_directions(weight, moments, components)}
        | (capacity_facts(d_model, moments.epsilon) if moments.epsilon > 0 else _no_capacity(d_model))
        | {"nearest_published": nearest_published(d_model, moments.epsilon)}
        | {"rows": {kind: None if found is None else asdict(found) for kind, found in report.kinds.items()}}
        | {"epsilon_without_flagged_rows": None if without is None else without.epsilon}
    )


def _no_capacity(d_model: int) -> dict:
    """The facts of `capacity_facts` where epsilon is not positive: cosines that are zero, or negative on average."""
    flag = "epsilon <= 0: these rows are no more alike than orthogonal ones; the forms need a positive epsilon"
    nothing = capacity.estimate(d_model, 1.0).facts  # what an epsilon outside (0, 1) is told
    return nothing | {"flags": [flag, *nothing["flags"][1:]], "bracket": None}


def _without_common_directions(weight: Matrix, stored: CosineMoments, components: Sequence[int]) -> list[dict]:
    """Epsilon without the mean row and without principal components too; empty where nothing would be left."""
    possible = [count for count in components if count < min(weight.shape[1], stored.rows - 1)]
    try:
        steps = isotropy.epsilon_profile(weight, possible, stored=stored)[1:]
    except RepcapError:
        return []
    return [{"components": step.components, "epsilon": step.moments.epsilon} for step in steps]


# --- lines ------------------------------------------------------------------------------------------------------------


def _matrix_lines(title: str, facts: dict, tokenizer: str) -> Iterator[str]:
    floor = facts["random_floor"]
    yield from group(
        f"{title}: epsilon of all {facts['pairs']} pairs",
        {
            "V x d_model": f"{facts['V']} x {facts['d_model']}",
            "mean": f"{facts['mean']:.5f}",
            "standard deviation": f"{facts['std']:.5f}",
            "epsilon": f"{facts['epsilon']:.5f}",
            "random floor": f"{floor:.5f} (2 / sqrt d; epsilon is {facts['epsilon'] / floor:.2f} times that)",
            "class": _CLASSES[facts["class"]],
        },
    )
    steps = facts["without_common_directions"]
    names = {step["components"]: f"and {step['components']} principal components" for step in steps}
    names |= {0: "the mean row", 1: "and 1 principal component"}
    yield from group(
        f"{title}: epsilon after removing common directions",
        {names[step["components"]]: f"{step['epsilon']:.5f}" for step in steps} or {"nothing": "is left of the rows"},
    )
    forms = {form: "-" if value is None else f"10^{value:.2f}" for form, value in facts["log10_by_form"].items()}
    flags = _numbered(facts["flags"])
    yield from group(f"{title}: directions by each form", forms | _bracket_lines(facts["bracket"]) | flags)
    yield from group(
        f"{title}: nearest published models",
        {near["model"]: _published(near) for near in facts["nearest_published"]} or {"none": "epsilon is not positive"},
    )
    without = facts["epsilon_without_flagged_rows"]
    yield from group(
        f"{title}: rows",
        {
            _kind(kind, facts): _unknown(tokenizer) if found is None else _row_set(found)
            for kind, found in facts["rows"].items()
        }
        | {"epsilon without them": "-" if without is None else f"{without:.5f}"},
    )


def _numbered(notes: Sequence[str]) -> dict[str, str]:
    return {f"note {i}" if i > 1 else "note": note for i, note in enumerate(notes, 1)}


def _head_line(facts: dict) -> str:
    if facts["head"] == "equal" and facts["head_rows"] < facts["V"]:
        more = ", spread over all; --unembedding compares the rest" if "revision" in facts else ", all that it has"
        return f"tied: a head is stored, equal in {facts['head_rows']} rows{more}"
    return _HEADS[facts["head"]]


def _published(near: dict) -> str:
    return f"d_model {near['d_model']}, epsilon {near['epsilon']:.5f}, capacity {shown(near['capacity'])}"


def _bracket_lines(bracket: dict | None) -> dict[str, str]:
    if bracket is None:
        return {}
    least = at_least(bracket["log10_lower"], bracket["lower"])
    most = at_most(bracket["log10_upper"], bracket["upper"])
    exact = bracket["lower"] is not None and bracket["lower"] == bracket["upper"]
    return {
        "exactly" if exact else "exist at least": f"{least} ({bracket['construction']})",
        "cannot exceed": f"{most} ({bracket['bound']}, degree {bracket['degree']})",
    }


def _other(name: str, log10: float) -> str:
    """A number beside the bracket: proved ones are rounded to the safe side, estimates to the nearest."""
    if name == "greedy":
        return at_least(log10, None)
    if "bound" in name:
        return at_most(log10, None)
    if name.startswith("random") and log10 < math.log10(2):
        return "fewer than 2: even of a single pair the median |cos| is above epsilon"
    return f"10^{log10:.2f}"


def _kind(kind: str, facts: dict) -> str:
    """What a set of rows is called; that of the padding after who tells of it."""
    if kind != "padded":
        return _KINDS[kind]
    return "beyond the configuration's vocab_size" if facts["padding_told_by"] == "configuration" else _KINDS[kind]


def _unknown(tokenizer: str) -> str:
    """Why it is not known which rows no token owns, by the fact `tokenizer`."""
    if tokenizer == _READ:
        return "unknown (other rows than the tokenizer's)"
    if tokenizer == _NO_TOKENIZER:
        return "unknown (no tokenizer)"
    return f"unknown (tokenizer not read{'; --tokens' if '--tokens' in tokenizer else ''})"


def _row_set(found: dict) -> str:
    if found["count"] == 0:
        return "0"
    named = found["tokens"] or [""] * len(found["rows"])
    short = [token if len(token) <= 24 else f"{token[:21]}..." for token in named]
    pairs = zip(found["rows"], short, strict=True)
    first = ", ".join(f"{row} {token!r}" if token else str(row) for row, token in pairs)
    return f"{found['count']} ({first}{', ...' if found['count'] > len(found['rows']) else ''})"
