"""A small language model with an untied head, trained here in minutes: no complete untied decoder can be had as a wheel.

`python -m repcap_utils.tiny_untied` trains it on the source text of Python's standard library and stores its statistics in
data/survey/; the weights stay in data/models/tiny-untied, which git ignores. `python -m repcap_utils.tiny_untied --tying`
trains it and its tied twin from three seeds instead, and stores the statistics of both, before and after. Needs
`transformers` and `tokenizers`.
"""

import hashlib
import json
import logging
import math
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from repcap_utils import __version__, embeddings, isotropy, paths, stores, unembedding
from repcap_utils.errors import RepcapError

NAME = "tiny-untied"
CONTROL = "tiny-untied-step-0"
"""The same model before the first step of training: what chance gives."""
RECIPE = "recipe.json"
FACTS = paths.SURVEY / "tiny_untied.csv"
TYING = paths.SURVEY / "tiny_tying.csv"
SEEDS = (0, 1, 2)
TYING_KEY = ("name", "seed")
TYING_COMPONENTS = (0, 1, 4, 16)


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights depend on, besides the versions of the libraries and the text.

    Attributes:
        rows: size of the vocabulary, V.
        d_model: width of the model.
        layers, heads, hidden: transformer blocks, heads of attention, width of the feed-forward part.
        steps, batch, context: training steps, sequences a step, tokens a sequence.
        rate: largest learning rate of AdamW; it rises over a tenth of the steps and falls as a cosine.
        text_bytes: how much text to train on, at most.
        seed: of the weights and of the order of the text.
    """

    rows: int = 4096
    d_model: int = 192
    layers: int = 2
    heads: int = 4
    hidden: int = 512
    steps: int = 400
    batch: int = 16
    context: int = 128
    rate: float = 2e-3
    text_bytes: int = 6_000_000
    seed: int = 0


def corpus(limit: int) -> str:
    """The .py files directly in Python's standard library, in the order of their names, up to `limit` bytes.

    Raises:
        RepcapError: there are none (a Python without its library's source).
    """
    folder = Path(sysconfig.get_path("stdlib"))
    parts, size = [], 0
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        size += len(text.encode())
        if size > limit:
            break
        parts.append(text)
    if not parts:
        raise RepcapError(
            f"no source text of at most {limit} bytes in {folder}; use a Python that has its library as .py files"
        )
    return "\n".join(parts)


def train(folder: Path, recipe: Recipe | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Train the model and put weights, tokenizer and recipe into `folder`, which appears only when complete.

    Args:
        folder: where the model goes; one that is there is replaced.
        recipe: None for the default.
        progress: called with a line now and then.

    Raises:
        RepcapError: transformers or tokenizers is missing; the text is too short; the folder cannot be written.
    """
    recipe = recipe or Recipe()
    transformers, tokenizers = _libraries()
    with _refusing_os_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    text, tokenizer, ids = _lesson(tokenizers, recipe)
    with _repeatable():
        model = _model(transformers, recipe)
        losses = _fit(model, ids, recipe, progress)
    facts = {
        **asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_in_text": len(ids),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "first_loss": round(losses[0], 3),
        "last_loss": round(_last(losses), 3),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
    _write(folder, model, tokenizer, facts)
    return folder


def untrained(recipe: Recipe | None = None) -> embeddings.Embedding:
    """The two matrices that the training of `train` starts from, under the name CONTROL.

    Raises:
        RepcapError: transformers is missing.
    """
    recipe = recipe or Recipe()
    with torch.random.fork_rng(devices=[]):
        model = _model(_libraries()[0], recipe)
    weight, head = (part.weight.detach() for part in (model.get_input_embeddings(), model.get_output_embeddings()))
    return embeddings.Embedding(
        weight, None, head, False, CONTROL, recipe.d_model, "float32", {"source": "memory"}, "different", recipe.rows
    )


def tying_rows(recipe: Recipe, progress: Callable[[str], None] | None = None) -> list[dict[str, object]]:
    """Rows of tiny_tying.csv for one seed: the untied model and its tied twin, before and after the same training.

    The twin starts from the same weights and sees the same text in the same order; its head is its embedding.

    Raises:
        RepcapError: see `train`.
    """
    transformers, tokenizers = _libraries()
    ids = _lesson(tokenizers, recipe)[2]
    rows = []
    for tied in (False, True):
        name = "tied" if tied else "untied"
        with _repeatable():
            model = _model(transformers, recipe)
            if tied:
                model.lm_head.weight = model.model.embed_tokens.weight
            before = _profiles(model, name, recipe.seed, 0, None)
            losses = _fit(model, ids, recipe, progress)
            rows += before + _profiles(model, name, recipe.seed, recipe.steps, _last(losses))
    return rows


def measure_tying(seeds: Sequence[int] = SEEDS, progress: Callable[[str], None] | None = None) -> None:
    """Store `tying_rows` of each seed that is not stored yet, one after the other.

    Raises:
        RepcapError: see `train`.
    """
    stored = stores.read(TYING, TYING_KEY)
    done = set(stored["seed"].astype(int))
    for seed in seeds:
        if seed not in done:
            stores.keep(TYING, tying_rows(Recipe(seed=seed), progress), TYING_KEY)


def _profiles(model, name: str, seed: int, step: int, loss: float | None) -> list[dict[str, object]]:
    """Moments of the cosines of a model's matrices (one where it is tied), as they are and without common directions."""
    parts = {"embedding": model.get_input_embeddings().weight}
    if name == "untied":
        parts["unembedding"] = model.get_output_embeddings().weight
    return [
        {
            "name": name,
            "seed": seed,
            "step": step,
            "matrix": matrix,
            "centred": "yes" if entry.centred else "no",
            "components": entry.components,
            "mean": entry.moments.mean,
            "std": entry.moments.std,
            "epsilon": entry.moments.epsilon,
            "loss": loss,
            "version": __version__,
        }
        for matrix, weight in parts.items()
        for entry in isotropy.epsilon_profile(weight, TYING_COMPONENTS)
    ]


def _last(losses: Sequence[float]) -> float:
    """The mean loss of the last 20 steps."""
    return sum(losses[-20:]) / len(losses[-20:])


@contextmanager
def _repeatable() -> Iterator[None]:
    """One thread, since sums in another order give other weights; torch's own state is put back afterwards."""
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)


def _libraries():
    try:
        import tokenizers
        import transformers
    except ImportError as error:
        raise RepcapError(f"{error.name} is not installed; run `pip install 'repcap[dev]'`") from error
    return transformers, tokenizers


def _lesson(tokenizers, recipe: Recipe):
    """The text to train on, its tokenizer, and its tokens.

    Raises:
        RepcapError: the text is too short.
    """
    text = corpus(recipe.text_bytes)
    tokenizer = _tokenizer(tokenizers, text, recipe.rows)
    ids = torch.tensor(tokenizer.encode(text).ids)
    if len(ids) <= recipe.context + 1:
        raise RepcapError(
            f"the text has {len(ids)} tokens, too few for a context of {recipe.context}; raise text_bytes"
        )
    return text, tokenizer, ids


def _tokenizer(tokenizers, text: str, rows: int):
    """A byte-level BPE tokenizer with `rows` tokens, learned from the text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=rows, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if tokenizer.get_vocab_size() != rows:
        raise RepcapError(
            f"the text gives {tokenizer.get_vocab_size()} tokens, not {rows}; raise text_bytes or lower rows"
        )
    return tokenizer


def _model(transformers, recipe: Recipe):
    """The model as it starts, by the seed of the recipe."""
    torch.manual_seed(recipe.seed)
    config = transformers.LlamaConfig(
        vocab_size=recipe.rows,
        hidden_size=recipe.d_model,
        intermediate_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def _fit(model, ids: torch.Tensor, recipe: Recipe, progress: Callable[[str], None] | None) -> list[float]:
    """Next-token training; the loss of each step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = max(1, recipe.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / recipe.steps))),
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    offsets = torch.arange(recipe.context)
    losses = []
    model.train()
    for step in range(recipe.steps):
        starts = torch.randint(len(ids) - recipe.context, (recipe.batch,), generator=generator)
        batch = ids[starts[:, None] + offsets]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if progress is not None and (step % 50 == 0 or step == recipe.steps - 1):
            progress(f"step {step}: loss {losses[-1]:.3f}")
    return losses


def _write(folder: Path, model, tokenizer, facts: dict[str, object]) -> None:
    with (
        _refusing_os_errors(folder),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary,
    ):
        made = Path(temporary) / folder.name
        model.save_pretrained(made)
        tokenizer.save(str(made / "tokenizer.json"))
        (made / RECIPE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.replace(folder)


@contextmanager
def _refusing_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepcapError(
            f"cannot write {folder}: {error.strerror or error}; check the folder's permissions"
        ) from error


def main(arguments: Sequence[str] = ()) -> None:
    """Train the default model, or with --tying the twins, and store the statistics."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if "--tying" in arguments:
        measure_tying(progress=logging.info)
        return
    folder = train(paths.models_dir() / NAME, progress=logging.info)
    unembedding.measure(embeddings.load(folder))
    unembedding.measure(untrained())
    facts = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    stores.keep(FACTS, [{"name": NAME, "quantity": key, "value": str(value)} for key, value in facts.items()])


if __name__ == "__main__":
    main(sys.argv[1:])
