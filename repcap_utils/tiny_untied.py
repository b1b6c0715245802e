"""A small language model with an untied head, trained here in minutes: no complete untied decoder can be had as a wheel.

`python -m repcap_utils.tiny_untied` trains it on the source text of Python's standard library and stores its statistics in
data/survey/; the weights stay in data/models/tiny-untied, which git ignores. Needs `transformers` and `tokenizers`.
"""

import hashlib
import json
import logging
import math
import platform
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from repcap_utils import embeddings, paths, stores, unembedding
from repcap_utils.errors import RepcapError

NAME = "tiny-untied"
CONTROL = "tiny-untied-step-0"
"""The same model before the first step of training: what chance gives."""
RECIPE = "recipe.json"
FACTS = paths.SURVEY / "tiny_untied.csv"


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
        tied: whether the head is the embedding.
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
    tied: bool = False


class Text(NamedTuple):
    """What a model is trained on: the text, its tokenizer, and its token ids."""

    text: str
    tokenizer: Any
    ids: torch.Tensor


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
    source = read_text(recipe)
    states = training(source.ids, recipe)
    _, model, _ = next(states)
    losses = []
    for step, _, loss in states:
        losses.append(loss)
        if progress is not None and ((step - 1) % 50 == 0 or step == recipe.steps):
            progress(f"step {step - 1}: loss {loss:.3f}")
    facts = {
        **asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_in_text": len(source.ids),
        "text_sha256": hashlib.sha256(source.text.encode()).hexdigest(),
        "first_loss": round(losses[0], 3),
        "last_loss": round(sum(losses[-20:]) / len(losses[-20:]), 3),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
    _write(folder, model, source.tokenizer, facts)
    return folder


def read_text(recipe: Recipe) -> Text:
    """The text of a recipe, and a tokenizer learned from it.

    Raises:
        RepcapError: transformers or tokenizers is missing; the text is too short.
    """
    text = corpus(recipe.text_bytes)
    tokenizer = _tokenizer(_libraries()[1], text, recipe.rows)
    ids = torch.tensor(tokenizer.encode(text).ids)
    if len(ids) <= recipe.context + 1:
        raise RepcapError(
            f"the text has {len(ids)} tokens, too few for a context of {recipe.context}; raise text_bytes"
        )
    return Text(text, tokenizer, ids)


def training(ids: torch.Tensor, recipe: Recipe) -> Iterator[tuple[int, Any, float]]:
    """The model after each number of steps, from 0 on, and the loss of the last step (NaN before the first).

    It is one model, which goes on changing. Until the iterator ends, torch has one thread: sums in another order give
    other weights.

    Raises:
        RepcapError: transformers is missing.
    """
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    try:
        torch.set_num_threads(1)
        model = _model(_libraries()[0], recipe)
        yield 0, model, math.nan
        for step, loss in enumerate(_fit(model, ids, recipe), start=1):
            yield step, model, loss
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)


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


def _libraries():
    try:
        import tokenizers
        import transformers
    except ImportError as error:
        raise RepcapError(f"{error.name} is not installed; run `pip install 'repcap[dev]'`") from error
    return transformers, tokenizers


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
        tie_word_embeddings=recipe.tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def _fit(model, ids: torch.Tensor, recipe: Recipe) -> Iterator[float]:
    """Next-token training; the loss of each step, once it is done."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = max(1, recipe.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / recipe.steps))),
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    offsets = torch.arange(recipe.context)
    model.train()
    for _ in range(recipe.steps):
        starts = torch.randint(len(ids) - recipe.context, (recipe.batch,), generator=generator)
        batch = ids[starts[:, None] + offsets]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad(set_to_none=True)
        yield loss.item()


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


def main() -> None:
    """Train the default model and store its statistics."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder = train(paths.models_dir() / NAME, progress=logging.info)
    unembedding.measure(embeddings.load(folder))
    unembedding.measure(untrained())
    facts = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    stores.keep(FACTS, [{"name": NAME, "quantity": key, "value": str(value)} for key, value in facts.items()])


if __name__ == "__main__":
    main()
