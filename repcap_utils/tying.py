"""An experiment on tying: small models that differ in nothing but whether the head is the embedding.

`python -m repcap_utils.tying` trains the recipe of `tiny_untied` tied and untied, from several seeds, and stores what
becomes of the pairwise cosines of embedding and unembedding in data/survey/tying.csv. A run that is in the store whole is
not repeated. Needs `transformers` and `tokenizers`.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from repcap_utils import __version__, isotropy, paths, stores, sweep, tiny_untied
from repcap_utils.tiny_untied import Recipe

STORE = paths.SURVEY / "tying.csv"
SEEDS = (0, 1, 2, 3, 4)
EMBEDDING, UNEMBEDDING = "embedding", "unembedding"
_RUN = ("seed", "tied")
_RECENT = 20


def measured_after(recipe: Recipe) -> list[int]:
    """The numbers of steps after which a run is measured: none, and a sixteenth, an eighth ... all of them."""
    return [0, *sorted({max(1, recipe.steps // part) for part in (16, 8, 4, 2, 1)})]


def run_rows(recipe: Recipe) -> Iterator[dict[str, object]]:
    """One row for each time of measurement and matrix (a tied model has one).

    Raises:
        RepcapError: transformers or tokenizers is missing; the text is too short.
    """
    losses: list[float] = []
    for step, model, loss in tiny_untied.training(tiny_untied.read_text(recipe).ids, recipe):
        losses += [loss] if step else []
        if step not in measured_after(recipe):
            continue
        matrices = {EMBEDDING: model.get_input_embeddings().weight}
        if not recipe.tied:
            matrices[UNEMBEDDING] = model.get_output_embeddings().weight
        for name, weight in matrices.items():
            stored, centred = isotropy.epsilon_profile(weight.detach(), (0,))
            yield {
                "seed": recipe.seed,
                "tied": "yes" if recipe.tied else "no",
                "step": step,
                "matrix": name,
                "V": recipe.rows,
                "d_model": recipe.d_model,
                "mean": stored.moments.mean,
                "std": stored.moments.std,
                "epsilon": stored.moments.epsilon,
                "centred_epsilon": centred.moments.epsilon,
                "loss": fmean(losses[-_RECENT:]) if losses else None,
            }


def run(recipes: Iterable[Recipe], store: Path = STORE) -> None:
    """Train and measure the recipes that a store lacks, each kept when it is complete."""
    done = stores.read(store, _RUN)
    for recipe in recipes:
        key = (recipe.seed, "yes" if recipe.tied else "no")
        if key in set(done[list(_RUN)].itertuples(index=False, name=None)):
            continue
        origin = {"version": __version__, "commit": sweep.commit()}
        rows = [row | origin for row in run_rows(recipe)]
        stores.keep(store, rows, _RUN)
        logging.info("seed %d, tied %s: epsilon of the embedding %.4f", *key, rows[-1]["epsilon"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(replace(Recipe(), seed=seed, tied=tied) for seed in SEEDS for tied in (True, False))
