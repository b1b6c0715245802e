"""An experiment on tying: small models that differ in nothing but whether the head is the embedding.

`python -m repcap_utils.tying` trains the recipe of `tiny_untied` tied and untied, from several seeds, and stores what
becomes of the pairwise cosines of embedding and unembedding in data/survey/tying.csv, and what the first step does to the
unembedding in data/survey/tying_first_step.csv. What is in the stores is not repeated. Needs `transformers` and
`tokenizers`.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch

from repcap_utils import __version__, isotropy, paths, spectrum, stores, sweep, tiny_untied
from repcap_utils.errors import RepcapError
from repcap_utils.tiny_untied import Recipe

STORE = paths.SURVEY / "tying.csv"
FIRST_STEP = paths.SURVEY / "tying_first_step.csv"
SEEDS = (0, 1, 2, 3, 4)
EMBEDDING, UNEMBEDDING = "embedding", "unembedding"
COMPONENTS = (0, 1, 16)
"""How many principal directions are removed besides the mean row; the first row of a matrix is as trained."""
_RUN = ("seed", "tied")
_RECENT = 20


def measured_after(recipe: Recipe) -> list[int]:
    """The numbers of steps after which a run is measured: none, and a sixteenth, an eighth ... all of them."""
    return [0, *sorted({max(1, recipe.steps // part) for part in (16, 8, 4, 2, 1)})]


def run_rows(recipe: Recipe) -> Iterator[dict[str, object]]:
    """One row for each time of measurement, matrix (a tied model has one) and number of directions removed.

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
        recent = fmean(losses[-_RECENT:]) if losses else None
        for name, weight in matrices.items():
            for profile in isotropy.epsilon_profile(weight.detach(), COMPONENTS):
                yield {
                    "seed": recipe.seed,
                    "tied": "yes" if recipe.tied else "no",
                    "step": step,
                    "matrix": name,
                    "V": recipe.rows,
                    "d_model": recipe.d_model,
                    "centred": "yes" if profile.centred else "no",
                    "components": profile.components,
                    "mean": profile.moments.mean,
                    "std": profile.moments.std,
                    "epsilon": profile.moments.epsilon,
                    "loss": recent,
                }


def common_share(matrix: torch.Tensor) -> float:
    """The part of the energy of the rows (V x d) that their mean row has.

    1 where all are equal, 1/V for orthogonal rows of one length, 0 where they add up to zero.

    Raises:
        RepcapError: a matrix of zeros.
    """
    rows = matrix.detach().to(torch.float64)
    energy = rows.square().sum(dim=1).mean()
    if energy == 0:
        raise RepcapError("the rows are all zero and have nothing in common; give a matrix that is not zero")
    return float(rows.mean(dim=0).square().sum() / energy)


def first_step_rows(recipe: Recipe) -> list[dict[str, object]]:
    """How alike the rows of the unembedding's first gradient are, and those of the step that AdamW makes of it.

    The softmax does not see what all rows of an unembedding share, so that the rows of its gradient add up to zero. The
    rows at unit length need not: many short ones in one direction can be balanced by a few long ones.

    Raises:
        RepcapError: a tied model, whose one matrix has a gradient as embedding too; see `run_rows`.
    """
    if recipe.tied:
        raise RepcapError("the first step is that of an unembedding of its own; give a recipe that is not tied")
    states = tiny_untied.training(tiny_untied.read_text(recipe).ids, recipe)
    _, model, _ = next(states)
    weight, gradients = model.get_output_embeddings().weight, []
    weight.register_hook(lambda gradient: gradients.append(gradient.clone()))
    before = weight.detach().clone()
    next(states)
    states.close()
    made = {"gradient": gradients[0], "step of AdamW": weight.detach() - before}
    return [
        {
            "seed": recipe.seed,
            "rows": which,
            "common_share": common_share(matrix),
            "unit_share": spectrum.of_rows(matrix).mean_length_squared,
        }
        for which, matrix in made.items()
    ]


def run_first_steps(recipes: Iterable[Recipe], store: Path = FIRST_STEP) -> None:
    """Measure the first steps that a store lacks."""
    done = set(stores.read(store, ("seed",))["seed"])
    for recipe in recipes:
        if recipe.seed not in done:
            origin = {"version": __version__, "commit": sweep.commit()}
            stores.keep(store, [row | origin for row in first_step_rows(recipe)], ("seed",), digits=8)


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
        logging.info("seed %d, tied %s: done", *key)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run_first_steps(replace(Recipe(), seed=seed) for seed in SEEDS)
    run(replace(Recipe(), seed=seed, tied=tied) for seed in SEEDS for tied in (True, False))
