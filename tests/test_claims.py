import math

import numpy as np
import pytest

from repcap_utils import claims, paths
from repcap_utils.errors import RepcapError

HEADER = "id,notebook,statement,where,evidence,value,unit,tolerance,tolerance_kind,caveat_tolerance\n"
LEDGER = (
    HEADER
    + """\
random-fit-c,02_jl_failure,Constant C,sec. 3.2,measured,3.029,,0.001,abs,0.03
below-vocabulary,02_jl_failure,"Fewer directions, or |k| < V",sec. 3.2,measured,yes,,,,
draws,02_jl_failure,Draws per cell,sec. 3.2,published data,1000,draws,0.2,rel,
ratio-r2,04_fitting_c,R2,fig. 7,measured,0.9984,,4,digits,2
mean,01_epsilon_estimation,Mean cosine,fig. 1,measured,0,,0.001,abs,0.01
"""
)


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """A small ledger with an empty folder of records; gives the ledger's path."""
    monkeypatch.setattr(paths, "PUBLISHED", tmp_path / "published")
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "records")
    path = tmp_path / "published" / "claims.csv"
    path.parent.mkdir()
    path.write_text(LEDGER, encoding="utf-8")
    return path


def row(id):
    frame = claims.table().set_index("id")
    return frame.loc[id]


def records(notebook="02_jl_failure"):
    return (paths.RECORDS / f"{notebook}.csv").read_text(encoding="utf-8")


def test_nothing_recorded_is_not_yet_computed(ledger):
    frame = claims.table()
    assert list(frame.columns) == ["id", "statement", "where", "evidence", "published", "ours", "verdict", "reason"]
    assert set(frame["verdict"]) == {claims.NOT_COMPUTED}
    assert list(claims.table("04_fitting_c")["id"]) == ["ratio-r2"]


def test_record_and_verdict(ledger):
    assert claims.record("random-fit-c", 3.02948) == "reproduced"
    assert row("random-fit-c")["ours"] == "3.02948"
    assert claims.record("random-fit-c", 3.05) == "reproduced with a caveat"
    assert row("random-fit-c")["reason"] == "differs by 0.69 %"
    assert claims.record("draws", 99.04, note="the data behave like 100 draws") == "not supported"
    assert tuple(row("draws")[["published", "ours", "reason"]]) == (
        "1000 draws",
        "99.04 draws",
        "the data behave like 100 draws",
    )


def test_a_caveat_lowers_a_match_and_is_shown(ledger):
    assert claims.record("below-vocabulary", True) == "reproduced"
    assert row("below-vocabulary")["reason"] == ""
    assert claims.record("below-vocabulary", True, caveat="one model", note="277 < 32000") == "reproduced with a caveat"
    assert row("below-vocabulary")["reason"] == "one model; 277 < 32000"
    assert claims.record("below-vocabulary", False, caveat="not here") == "not supported"


def test_a_difference_from_zero_is_absolute(ledger):
    claims.record("mean", -0.004)
    assert row("mean")["reason"] == "differs by 0.004"


@pytest.mark.parametrize(("id", "value"), [("draws", 99), ("below-vocabulary", False), ("below-vocabulary", "no")])
def test_a_claim_that_is_not_reproduced_needs_a_note(ledger, id, value):
    with pytest.raises(RepcapError, match="a claim that is not reproduced needs a note"):
        claims.record(id, value)
    with pytest.raises(RepcapError, match="needs a note"):
        claims.record(id, value, note=" \n")
    assert not paths.RECORDS.exists()


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (3.0294798765, "3.02948"),
        (np.float32(3.029), "3.029"),
        (np.int64(3), "3"),
        (3.9938e7, "3.9938e+07"),
        (-0.0, "0"),
    ],
)
def test_numbers_are_stored_with_six_digits(ledger, value, stored):
    claims.record("random-fit-c", value, note="a test")
    assert records() == f"id,measured,caveat,note\nrandom-fit-c,{stored},,a test\n"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, True, np.True_, "3.029", "yes", None, [3.0]])
def test_a_numeric_claim_needs_a_finite_number(ledger, value):
    with pytest.raises(RepcapError, match="'random-fit-c' is a number; record a finite number"):
        claims.record("random-fit-c", value, note="a test")
    assert not paths.RECORDS.exists()


@pytest.mark.parametrize("value", [1, 0.0, "true", "Yes", None, ""])
def test_a_yes_no_claim_needs_a_bool(ledger, value):
    with pytest.raises(RepcapError, match="yes/no claim; record True or False"):
        claims.record("below-vocabulary", value, note="a test")


@pytest.mark.parametrize(("value", "stored"), [(np.True_, "yes"), ("yes", "yes"), (False, "no"), ("no", "no")])
def test_answers(ledger, value, stored):
    claims.record("below-vocabulary", value, note="a test")
    assert row("below-vocabulary")["ours"] == stored


def test_unknown_id_suggests_the_nearest(ledger):
    with pytest.raises(RepcapError, match="unknown claim 'random-fit-C'; did you mean 'random-fit-c'"):
        claims.record("random-fit-C", 3.0)
    with pytest.raises(RepcapError, match="unknown notebook '02_jl'; did you mean '02_jl_failure'"):
        claims.table("02_jl")


def test_rows_keep_the_order_of_the_ledger_and_unchanged_files_stay(ledger):
    claims.record("draws", 1000)
    claims.record("random-fit-c", 3.029)
    claims.record("below-vocabulary", True)
    content = records()
    assert [line.split(",")[0] for line in content.splitlines()[1:]] == ["random-fit-c", "below-vocabulary", "draws"]
    path = paths.RECORDS / "02_jl_failure.csv"
    before = path.stat()
    claims.record("draws", 1000.0000001)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [entry.name for entry in paths.RECORDS.iterdir()] == ["02_jl_failure.csv"]


def test_a_note_may_hold_commas_quotes_and_newlines(ledger):
    claims.record("draws", 99, note='T = 99, "not" 1000\n  as stated')
    assert row("draws")["reason"] == 'T = 99, "not" 1000 as stated'


@pytest.mark.parametrize(
    ("published", "kind", "tolerance", "measured", "inside"),
    [
        ("0.707", "digits", 3, "0.70676", True),
        ("0.707", "digits", 3, "0.7076", False),
        ("2.0e7", "digits", 2, "1.9844e7", True),
        ("2.4e8", "digits", 2, "2.45875e8", False),
        ("2.4e8", "digits", 1, "2.45875e8", True),
        ("0.3", "abs", 0.1, "0.4", True),
        ("0.3", "abs", 0.1, "0.41", False),
        ("-50", "rel", 0.1, "-55", True),
        ("-50", "rel", 0.1, "-44", False),
        ("166", "abs", 0, "166", True),
        ("166", "abs", 0, "165", False),
    ],
)
def test_tolerances(published, kind, tolerance, measured, inside):
    claim = claims.Claim("a", "04_fitting_c", "s", "w", "measured", published, "", tolerance, kind, None)
    assert claims.verdict(claim, measured) == (claims.REPRODUCED if inside else claims.NOT_SUPPORTED)


def test_verdict_without_a_measurement():
    claim = claims.Claim("a", "04_fitting_c", "s", "w", "measured", "yes", "", None, "", None)
    assert claims.verdict(claim, None) == claims.NOT_COMPUTED


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,04_fitting_c,s,w,measured,yes,,,\n", ":2: 9 columns where 10 are needed"),
        ("a,04_fitting,s,w,measured,yes,,,,\n", ":2: unknown notebook '04_fitting'; did you mean '04_fitting_c'"),
        ("a,04_fitting_c,s,w,seen,yes,,,,\n", ":2: evidence 'seen' is not one of measured"),
        ("a,04_fitting_c,,w,measured,yes,,,,\n", ":2: the column statement is empty"),
        ("a,04_fitting_c,s,w,measured,maybe,,1,abs,\n", ":2: value = 'maybe' is not a finite number"),
        ("a,04_fitting_c,s,w,measured,nan,,1,abs,\n", ":2: value = 'nan'"),
        ("a,04_fitting_c,s,w,measured,1,,,abs,\n", ":2: a claim needs yes, no, or a number with a tolerance"),
        ("a,04_fitting_c,s,w,measured,1,,1,percent,\n", ":2: tolerance_kind 'percent'"),
        ("a,04_fitting_c,s,w,measured,0,,1,rel,\n", ":2: tolerance_kind 'rel'"),
        ("a,04_fitting_c,s,w,measured,1,,2.5,digits,\n", ":2: a tolerance in digits"),
        ("a,04_fitting_c,s,w,measured,1,,2,digits,3\n", ":2: tolerances .* the looser one"),
        ("a,04_fitting_c,s,w,measured,1,,2,abs,1\n", ":2: tolerances .* the looser one"),
        ("a,04_fitting_c,s,w,measured,1,,-1,abs,\n", ":2: tolerances must not be negative"),
        ("a,04_fitting_c,s,w,measured,yes,,1,abs,\n", ":2: a yes/no claim has no tolerance"),
        ("a,04_fitting_c,s,w,measured,yes,,,,\n" * 2, ":3: the id 'a' occurs twice"),
        ('a,04_fitting_c,"s"x,w,measured,yes,,,,\n', ":2: malformed CSV"),
    ],
)
def test_a_malformed_ledger_names_file_and_line(ledger, line, message):
    ledger.write_text(HEADER + line, encoding="utf-8")
    with pytest.raises(RepcapError, match=r"claims\.csv" + message):
        claims.load_ledger()


def test_a_ledger_without_header_or_file(ledger):
    ledger.write_text("id,notebook\n", encoding="utf-8")
    with pytest.raises(RepcapError, match=r"claims\.csv:1: the header must be id,notebook,statement"):
        claims.table()
    ledger.write_bytes(HEADER.encode() + b"\xff\n")
    with pytest.raises(RepcapError, match=r"claims\.csv: not UTF-8 text"):
        claims.table()
    ledger.unlink()
    with pytest.raises(RepcapError, match="no ledger of claims"):
        claims.table()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gone,1,,\n", "'gone' is unknown or occurs twice"),
        ("draws,1,,x\n" * 2, "'draws' is unknown or occurs twice"),
        ("draws,yes,,\n", "'draws' holds 'yes', not the kind"),
        ("below-vocabulary,3,,\n", "'below-vocabulary' holds '3', not the kind"),
        ("draws,inf,,\n", ":2: measured = 'inf' is not a finite number"),
        ("draws,,,\n", ":2: the column measured is empty"),
        ("draws,1\n", ":2: 2 columns where 4 are needed"),
    ],
)
def test_malformed_records_name_the_file(ledger, line, message):
    path = paths.RECORDS / "02_jl_failure.csv"
    paths.write_text(path, "id,measured,caveat,note\n" + line)
    with pytest.raises(RepcapError, match=r"02_jl_failure\.csv:? ?.*" + message):
        claims.table()


def test_recording_drops_rows_that_the_ledger_no_longer_has(ledger):
    paths.write_text(paths.RECORDS / "02_jl_failure.csv", "id,measured,caveat,note\ngone,1,,\n")
    claims.record("draws", 1000)
    assert records() == "id,measured,caveat,note\ndraws,1000,,\n"


def test_summary_markdown(ledger):
    claims.record("below-vocabulary", True)
    claims.record("draws", 99, note="100 | rather than 1000")
    lines = claims.summary_markdown().splitlines()
    assert lines[0].startswith("5 published claims")
    assert lines[2:6] == [
        "| evidence | reproduced | not supported | not yet computed |",
        "| --- | --- | --- | --- |",
        "| measured | 1 | 0 | 3 |",
        "| published data | 0 | 1 | 0 |",
    ]
    assert r"| Fewer directions, or \|k\| < V (sec. 3.2) | measured | yes | yes | reproduced |" in lines
    assert "| Draws per cell (sec. 3.2) | published data | 1000 draws | 99 draws | not supported |" in lines
    assert len(lines) == 2 + 4 + 1 + 2 + 5


def test_update_readme(ledger, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{claims.BEGIN}\nold\n{claims.END}\n\nEnd é\n", encoding="utf-8")
    assert claims.update_readme(readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("# Title\n\n<!-- claims:begin -->\n\n5 published claims")
    assert text.endswith("<!-- claims:end -->\n\nEnd é\n")
    assert "old" not in text
    assert not claims.update_readme(readme)


@pytest.mark.parametrize(
    "text", ["none", claims.BEGIN, claims.END + claims.BEGIN, 2 * claims.BEGIN + claims.END, "<!-- claims:end -->"]
)
def test_update_readme_needs_its_markers(ledger, tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text, encoding="utf-8")
    with pytest.raises(RepcapError, match=r"README\.md must hold <!-- claims:begin -->"):
        claims.update_readme(readme)
    assert readme.read_text(encoding="utf-8") == text
    with pytest.raises(RepcapError, match="no file"):
        claims.update_readme(tmp_path / "absent.md")


def test_the_committed_ledger():
    ledger = claims.load_ledger()
    assert len(ledger) >= 45
    assert {claim.notebook for claim in ledger} == set(claims.NOTEBOOKS)
    assert [claim.notebook for claim in ledger] == sorted(claim.notebook for claim in ledger)
    for claim in ledger:
        assert claim.id == claim.id.lower() and " " not in claim.id
        assert not claim.statement.endswith(".") and len(claim.statement) < 110
        # A value meets its own tolerance as it is stored: six digits hold everything that is published.
        assert claims.verdict(claim, claim.value) == claims.REPRODUCED


def test_the_committed_records_fit_the_ledger():
    frame = claims.table()
    assert set(frame["verdict"]) <= set(claims.VERDICTS)
    assert (frame.loc[frame["verdict"].isin([claims.CAVEAT, claims.NOT_SUPPORTED]), "reason"] != "").all()


def test_the_table_of_published_models():
    lines = (paths.PUBLISHED / "models.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "model,hub_id,d_model,epsilon,capacity,in_figure_5b"
    rows = [line.split(",") for line in lines[1:]]
    assert len(rows) == 45
    assert len({cells[1] for cells in rows}) == 45
    hidden = {cells[0] for cells in rows if cells[4] and cells[5] == "no"}
    assert hidden == {"Gemma 2 27B", "Gemma 3 12B", "Gemma 3 27B", "Llama 2 70B"}
    for cells in rows:
        assert bool(cells[4]) == (float(cells[3]) < 0.1)
        assert cells[4] or cells[5] == "no"
