import numpy as np
import pytest
import torch

from repcap_utils import embeddings, lexical, models, similarity, stores, survey, tokens
from repcap_utils.errors import RepcapError

WORDS = ["king", "queen", "man", "woman", "girl", "yes", "no", "quick", "un", "kingdom"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The stores in an empty folder."""
    for name in ("PRIMARY", "DEGREES", "TAIL", "PAIRS", "ANALOGY"):
        monkeypatch.setattr(lexical, name, tmp_path / getattr(lexical, name).name)
    return tmp_path


def embedding(weight, strings, name="small"):
    return embeddings.Embedding(weight, strings, None, True, name, weight.shape[1], "float32", {})


def random(rows, d, seed=0):
    return torch.randn(rows, d, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def planted():
    """A vocabulary with king - man + woman = queen; yes and no close together, quick and un at right angles."""
    weight = random(2 * len(WORDS), 64)
    at = {text: row for row, text in enumerate(WORDS)}
    weight[at["queen"]] = weight[at["king"]] - weight[at["man"]] + weight[at["woman"]]
    weight[at["no"]] = weight[at["yes"]] * 3.0 + 0.01
    weight[at["quick"]] = torch.eye(64)[0]
    weight[at["un"]] = torch.eye(64)[1] * 5.0
    return embedding(weight, [f"Ġ{text}" for text in WORDS] + [f"x{n}" for n in range(len(WORDS))])


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (" The", "the", lexical.SAME_WORD),
        ("É", " é", lexical.SAME_WORD),
        (" run", "Running", lexical.SAME_STEM),
        ("make", "making", lexical.SAME_STEM),
        ("city", "cities", lexical.SAME_STEM),
        ("walks", "walked", lexical.SAME_STEM),
        ("quick", "quickly", lexical.SAME_STEM),
        ("cat", "dog", lexical.OTHER_WORDS),
        ("bus", "bu", lexical.OTHER_WORDS),
        ("is", "i", lexical.OTHER_WORDS),
        ("one", "1", lexical.NOT_WORDS),
        ("", "", lexical.NOT_WORDS),
        ("a-b", "a-b", lexical.NOT_WORDS),
        ("<0xE8>", "<0xE9>", lexical.NOT_WORDS),
    ],
)
def test_kinds_of_pairs(first, second, kind):
    assert lexical.kind(first, second) == lexical.kind(second, first) == kind


@pytest.mark.parametrize("above", [-0.2, 0.1, 0.35])
def test_pairs_above_are_those_of_brute_force(above, monkeypatch):
    monkeypatch.setattr(lexical, "_ROWS", 7)
    weight = random(60, 12)
    weight[[0, 31]] = 0.0
    unit = torch.nn.functional.normalize(weight.double()).numpy()
    kept = [i for i in range(60) if i not in (0, 31)]
    expected = {(i, j) for i in kept for j in kept if i < j and unit[i] @ unit[j] > above}
    values, places = lexical.pairs_above(weight, above)
    assert {tuple(pair) for pair in places.tolist()} == expected
    assert len(places) == len(expected) > 0
    assert values == pytest.approx([unit[i] @ unit[j] for i, j in places], abs=1e-6)


def test_too_many_pairs_are_refused():
    with pytest.raises(RepcapError, match=r"more than 10 pairs have .*; choose a higher value"):
        lexical.pairs_above(torch.ones(20, 4), 0.99, most=10)


def test_the_tail_begins_where_there_is_one_pair_a_token():
    edges = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    counts = np.array([100, 50, 6, 4])
    assert [lexical.tail_edge(counts, edges, rows) for rows in (4, 5, 10, 11, 160)] == [0.75, 0.5, 0.5, 0.25, 0.0]


STRINGS = ["Ġrun", "run", "ĠRun", "Ġrunning", "Ġ1", "Ġcat", "Ġcats"]
NEAREST = np.array([1, 0, 0, 0, 0, 6, -1])
VALUES = np.array([0.9, 0.9, 0.5, 0.8, 0.3, 0.7, 0.0])


def test_primary_tokens_are_the_hubs_with_their_closest_variants():
    first, second, *_ = lexical.primary_rows("small", STRINGS, VALUES, NEAREST)
    assert (first["token"], first["count"], first["same_word"], first["same_stem"]) == ("␣run", 4, 2, 1)
    assert first["variants"] == "run ␣running ␣Run ␣1"
    assert (second["token"], second["count"]) == ("run", 1)


def test_tokens_with_the_most_variants_are_kept_beside_the_largest(monkeypatch):
    monkeypatch.setattr(lexical, "PRIMARY_KEPT", 1)
    strings = ["Ġcat", "cat", "ĠCat", "x1", "x2", "x3", "x4"]
    rows = lexical.primary_rows("small", strings, np.linspace(0.9, 0.3, 7), np.array([1, 0, 0, 4, 3, 3, 3]))
    assert [(row["token"], row["count"], row["same_word"]) for row in rows] == [("x1", 3, 0), ("␣cat", 2, 2)]


def test_degrees_count_every_token_and_every_link():
    rows = lexical.degree_rows("small", STRINGS, NEAREST)
    assert [(row["count"], row["tokens"], row["same_word"], row["same_stem"]) for row in rows] == [
        (0, 4, 0, 0),
        (1, 2, 1, 1),
        (4, 1, 2, 1),
    ]


@pytest.mark.parametrize("rows", [[3, 59, 0, 17], list(range(60))])
def test_neighbours_of_some_rows_are_those_of_all(rows, monkeypatch):
    monkeypatch.setattr(lexical, "_ROWS", 7)
    weight = random(60, 12)
    values, nearest = lexical.nearest_of(weight, np.array(rows))
    expected_values, expected = similarity.nearest_neighbours(weight)
    assert nearest.tolist() == expected[rows, 0].tolist()
    assert values == pytest.approx(expected_values[rows, 0].numpy(), abs=1e-6)


def test_tail_rows_hold_every_pair_once():
    strings = ["Ġa", "A", "Ġcat", "cats", "7"]
    places = np.array([[0, 1], [2, 3], [0, 2], [3, 4], [2, 3]])
    rows = lexical.tail_rows("small", "tail", strings, np.array([1.0, 0.501, 0.509, -1.0, 0.5]), places)
    found = {(row["bin"], row["kind"]): row["count"] for row in rows}
    assert found == {
        (0, lexical.NOT_WORDS): 1,
        (150, lexical.SAME_STEM): 2,
        (150, lexical.OTHER_WORDS): 1,
        (199, lexical.SAME_WORD): 1,
    }


def test_word_pairs_in_the_forms_that_are_tokens(planted):
    rows = lexical.word_pair_rows(planted)
    assert [(row["first"], row["second"], row["form"]) for row in rows] == [
        ("yes", "no", "leading space"),
        ("quick", "un", "leading space"),
    ]
    assert rows[0]["cosine"] == pytest.approx(1.0, abs=1e-3)
    assert rows[1]["cosine"] == 0.0


def test_a_planted_analogy_is_found_and_its_own_words_are_left_out(planted):
    rows = lexical.analogy_rows(planted, top=5)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert (rows[0]["token"], rows[0]["form"]) == ("␣queen", "leading space")
    assert rows[0]["cosine"] == pytest.approx(1.0, abs=1e-6)
    assert not {"␣king", "␣woman", "␣kingdom"} & {row["token"] for row in lexical.analogy_rows(planted)}
    assert "␣man" in {row["token"] for row in lexical.analogy_rows(planted)}


def test_both_kinds_of_measurement_are_stored(planted, folder):
    lexical.measure_words(planted)
    lexical.measure_neighbours(planted, 0.2)
    tail = stores.read(lexical.TAIL)
    assert tail[tail["pairs"] == "nearest"]["count"].sum() == len(planted.weight)
    moments = similarity.cosine_histogram(planted.weight, 10, (0.2, 1.0)).counts.sum()
    assert tail[tail["pairs"] == "tail"]["count"].sum() == moments
    primary = stores.read(lexical.PRIMARY)
    assert primary["count"].sum() == len(planted.weight)
    degrees = stores.read(lexical.DEGREES)
    assert degrees["tokens"].sum() == (degrees["tokens"] * degrees["count"]).sum() == len(planted.weight)
    assert set(stores.read(lexical.PAIRS)["name"]) == set(stores.read(lexical.ANALOGY)["name"]) == {"small"}


def test_without_an_edge_the_neighbours_alone_are_stored(planted, folder):
    lexical.measure_neighbours(planted, None)
    assert set(stores.read(lexical.TAIL)["pairs"]) == {"nearest"}
    assert stores.read(lexical.PRIMARY)["count"].sum() == len(planted.weight)


def test_a_sample_of_a_large_vocabulary(planted, folder, monkeypatch):
    monkeypatch.setattr(lexical, "SAMPLE", 6)
    lexical.measure_sample(planted)
    tail = stores.read(lexical.TAIL)
    assert set(tail["pairs"]) == {"nearest, sample"}
    assert tail["count"].sum() == 6
    assert [path.name for path in folder.glob("[!.]*")] == [lexical.TAIL.name]


def test_a_model_without_the_words_stores_nothing(folder):
    lexical.measure_words(embedding(random(4, 8), ["a", "b", "c", "d"]))
    assert list(folder.iterdir()) == []


def test_without_token_strings_the_reason_is_named(folder):
    for measure in (lexical.measure_words, lambda e: lexical.measure_neighbours(e, 0.5)):
        with pytest.raises(
            RepcapError, match=r"small has no token strings: no tokenizer\.json, no vocab file; put them"
        ):
            measure(embedding(random(8, 4), None))


def test_models_that_are_not_here_are_skipped_visibly(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("REPCAP_MODELS", str(tmp_path / "nothing"))
    assert list(lexical.run(["smollm2-135m"])) == [
        "smollm2-135m: SKIPPED: its weights are not here; run `repcap models fetch smollm2-135m`"
    ]
    assert list(folder.iterdir()) == []


def test_committed_stores_belong_together():
    shapes = survey.read(survey.EPSILON).set_index("name")
    primary, tail = stores.read(lexical.PRIMARY), stores.read(lexical.TAIL)
    pairs, analogy = stores.read(lexical.PAIRS), stores.read(lexical.ANALOGY)
    assert {"smollm2-135m", "gemma-3-270m"} <= set(pairs["name"]) & set(analogy["name"])
    degrees = stores.read(lexical.DEGREES)
    for name, rows in primary.groupby("name"):
        links = tail[(tail["name"] == name) & (tail["pairs"] == "nearest")]
        own = degrees[degrees["name"] == name]
        assert own["tokens"].sum() == shapes["V"][name]
        assert (
            links["count"].sum()
            == (own["tokens"] * own["count"]).sum()
            == shapes["V"][name] - shapes["zero_rows"][name]
        )
        same = links[links["kind"].isin([lexical.SAME_WORD, lexical.SAME_STEM])]["count"].sum()
        assert same == own[["same_word", "same_stem"]].to_numpy().sum()
        assert rows["count"].max() == own["count"].max()
        above = tail[(tail["name"] == name) & (tail["pairs"] == "tail")]
        histogram = survey.read(survey.HISTOGRAMS).query("name == @name and bin >= @above.bin.min()")
        # Both passes multiply in float32: a pair at an edge may fall on either side.
        assert above["count"].sum() == pytest.approx(histogram["count"].sum(), rel=1e-3)
    assert set(tail["name"]) == set(pairs["name"])
    assert set(tail["kind"]) <= set(lexical.KINDS)
    assert (primary["same_word"] + primary["same_stem"] <= primary["count"]).all()
    assert (analogy.groupby(["name", "form"])["rank"].max() == lexical.TOP).all()


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m"])
def test_stored_words_agree_with_the_weights(name):
    if not models.get(name).is_present:
        pytest.skip(f"the weights of {name} are not here: `make models`")
    live = embeddings.load(name)
    stored = stores.read(lexical.PAIRS).query("name == @name")
    assert [row["cosine"] for row in lexical.word_pair_rows(live)] == pytest.approx(stored["cosine"].tolist(), abs=1e-5)
    primary = stores.read(lexical.PRIMARY).query("name == @name")
    shown = tokens.labels(live.tokens)
    assert [shown[row] for row in primary["row"]] == primary["token"].tolist()
