"""What `repcap access` says of a model: facts as a dict that JSON can hold, and the same facts as lines of text."""

from collections.abc import Iterator

import numpy as np

from repcap_utils.embeddings import Embedding
from repcap_utils.linear_access import INPUTS, Interference
from repcap_utils.texts import group


def facts(embedding: Embedding, found: Interference, error: float, *, centred: bool, components: int) -> dict:
    """Worst-case errors E_1, E_2, ... of reading active tokens, each by its own embedding (arXiv 2602.11246), by name.

    Args:
        embedding: the model.
        found: what its rows take up from one another, after the removals that `centred` and `components` name.
        error: the largest error of a reading that is still of use.
    """
    readings = {inputs: _reading_facts(found, inputs, error, embedding.tokens) for inputs in INPUTS}
    return {
        "name": embedding.name,
        "V": len(embedding.weight),
        "d_model": embedding.d_model,
        "zero_rows": found.zero_rows,
        "centred": centred,
        "components": components,
        "error": error,
        **readings,
        "separable": [float((found.margins(k) > 0).mean()) for k in range(1, found.depth + 1)],
    }


def lines(facts: dict) -> Iterator[str]:
    """The facts as lines, in groups with a heading."""
    removed = ["the mean row"] * facts["centred"] + [f"{facts['components']} principal components"] * (
        facts["components"] > 0
    )
    yield from group(
        f"{facts['name']}: reading active tokens, each by its own embedding",
        {
            "V x d_model": f"{facts['V']} x {facts['d_model']}, of which {facts['zero_rows']} rows without a direction",
            "removed first": " and ".join(removed) or "nothing",
        },
    )
    below = f"below {facts['error']:g}"
    for inputs, box in (("signed", "[-1, 1]"), ("nonnegative", "[0, 1]")):
        found = facts[inputs]
        yield f"inputs in {box}: every error stays {below} with {_sparsity(found['usable_sparsity'], found)} active at once"
        yield f"  the median token's error stays {below} up to {_sparsity(found['usable_sparsity_of_the_median_token'], found)}"
        yield f"  {'active':>6}  {'worst error':>11}  {'tokens ' + below:>18}  worst token"
        named = found["worst_tokens"] or [None] * len(found["errors"])
        rows = zip(found["errors"], found["share_below"], found["worst_rows"], named, strict=True)
        for k, (error, share, row, token) in enumerate(rows, start=1):
            worst = str(row) if token is None else f"{row} {token!r}"
            yield f"  {k:>6}  {error:>11.5f}  {100 * share:>17.3f}%  {worst}"
    shares = ", ".join(f"{k}: {100 * share:.3g} %" for k, share in enumerate(facts["separable"], start=1))
    yield f"tokens that a threshold reads without error, by the number of active ones: {shares}"


def _reading_facts(found: Interference, inputs: str, error: float, tokens: list[str] | None) -> dict:
    """E_1, E_2, ... for one kind of inputs, the token that errs most at each k, and the k that stays below the error."""
    worst = [found.worst_case(k, inputs) for k in range(1, found.depth + 1)]
    usable = found.usable_sparsity(error, inputs)
    return {
        "errors": [case.error for case in worst],
        "worst_rows": [case.row for case in worst],
        "worst_tokens": None if tokens is None else [tokens[case.row] for case in worst],
        "share_below": [float((usable >= k).mean()) for k in range(1, found.depth + 1)],
        "usable_sparsity": int(usable.min()),
        "usable_sparsity_of_the_median_token": int(np.median(usable)),
    }


def _sparsity(k: int, found: dict) -> str:
    """A number of active tokens; the largest that was asked for may not be the end."""
    return f"{k} or more" if k == len(found["errors"]) else str(k)
