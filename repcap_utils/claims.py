"""The ledger of claims: numbers and statements of arXiv 2606.02765 and 2602.11246, what this project finds, and the verdict.

`data/published/claims.csv` holds the published values with their tolerances. Notebooks call `record`, which keeps the
measured values in `data/records/<notebook>.csv`. Verdicts are computed from the two and never typed in.
"""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from pathlib import Path

import numpy as np
import pandas as pd

from repcap_utils import paths
from repcap_utils.errors import RepcapError

REPRODUCED = "reproduced"
CAVEAT = "reproduced with a caveat"
NOT_SUPPORTED = "not supported"
NOT_COMPUTED = "not yet computed"
VERDICTS = (REPRODUCED, CAVEAT, NOT_SUPPORTED, NOT_COMPUTED)

NOTEBOOKS = (
    "01_epsilon_estimation",
    "02_jl_failure",
    "03_packing_simulation",
    "04_fitting_c",
    "05_model_survey",
    "06_scaling_trends",
    "07_rigorous_bounds",
    "08_linear_access",
    "09_two_classes",
)
BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"

_LEDGER_COLUMNS = (
    "id",
    "notebook",
    "statement",
    "where",
    "evidence",
    "value",
    "unit",
    "tolerance",
    "tolerance_kind",
    "caveat_tolerance",
)
_TABLE_COLUMNS = ("id", "statement", "where", "evidence", "published", "ours", "verdict", "reason")
_RECORD_COLUMNS = ("id", "measured", "caveat", "note")
EVIDENCE = ("measured", "published data", "arithmetic")
"""What a verdict rests on: weights or simulations of this project, the paper's own data, or formulas and theorems alone."""

_ANSWERS = {"yes": True, "no": False}


@dataclass(frozen=True)
class Claim:
    """One published value.

    `value` is the text of the ledger, a number or yes/no. For a number, `tolerance_kind` says how `tolerance` and the
    looser `caveat_tolerance` are meant: abs (absolute difference), rel (relative difference) or digits (significant
    digits that agree after rounding).
    """

    id: str
    notebook: str
    statement: str
    where: str
    evidence: str
    value: str
    unit: str
    tolerance: float | None
    tolerance_kind: str
    caveat_tolerance: float | None

    @property
    def is_answer(self) -> bool:
        """Whether the claim is a yes/no statement."""
        return self.value in _ANSWERS


@dataclass(frozen=True)
class Record:
    """A measured value as stored: `measured` is a number of 6 significant digits or yes/no."""

    id: str
    measured: str
    caveat: str
    note: str


def record(id: str, value: bool | float | str, *, note: str = "", caveat: str = "") -> str:
    """Store what was measured for a claim and return the verdict.

    Args:
        id: a claim of the ledger.
        value: a finite number for a numeric claim; True, False, "yes" or "no" for a yes/no claim. Numbers are kept
            with 6 significant digits, so that the file does not change from one CPU to the next.
        note: the evidence, one line; needed where the value does not match.
        caveat: why a matching value is no full confirmation; it lowers the verdict to "reproduced with a caveat".

    Returns:
        One of `VERDICTS`. A file whose content would not change is not written.

    Raises:
        RepcapError: unknown id (with the nearest known one), a value of the wrong kind or not finite, a mismatch
            without note or caveat, or a malformed ledger or record file.
    """
    ledger = load_ledger()
    claim = _find(ledger, id)
    new = Record(id, _measured(claim, value), _one_line(caveat), _one_line(note))
    result = verdict(claim, new.measured, new.caveat)
    if result == NOT_SUPPORTED and not (new.note or new.caveat):
        raise RepcapError(
            f"claim {id!r}: a claim that is not reproduced needs a note; measured {new.measured}, published {claim.value}"
        )
    path = _record_path(claim.notebook)
    kept = {row.id: row for row in _read_records(path)} | {id: new}
    rows = [kept[c.id] for c in ledger if c.notebook == claim.notebook and c.id in kept]
    paths.write_text(path, _csv_text(_RECORD_COLUMNS, ((r.id, r.measured, r.caveat, r.note) for r in rows)))
    return result


def verdict(claim: Claim, measured: str | None, caveat: str = "") -> str:
    """The verdict on one claim.

    Args:
        claim: the published value.
        measured: the stored text of the measured value; None where there is none.
        caveat: a reason that lowers "reproduced" to "reproduced with a caveat".
    """
    if measured is None:
        return NOT_COMPUTED
    if claim.is_answer:
        matches, roughly = measured == claim.value, False
    else:
        matches = _within(claim, float(measured), claim.tolerance)
        roughly = claim.caveat_tolerance is not None and _within(claim, float(measured), claim.caveat_tolerance)
    if matches and not caveat:
        return REPRODUCED
    return CAVEAT if matches or roughly else NOT_SUPPORTED


def table(notebook: str | None = None) -> pd.DataFrame:
    """The claims of one notebook, or all, in the ledger's order.

    Returns:
        A frame with the text columns id, statement, where, evidence, published, ours, verdict, reason; `ours` and
        `reason` are empty where nothing is recorded.

    Raises:
        RepcapError: unknown notebook, or a malformed ledger or record file.
    """
    if notebook is not None and notebook not in NOTEBOOKS:
        raise RepcapError(f"unknown notebook {notebook!r}{_hint(notebook, NOTEBOOKS)}")
    ledger = load_ledger()
    records = {name: _checked_records(name, ledger) for name in ([notebook] if notebook else dict.fromkeys(NOTEBOOKS))}
    rows = [_table_row(claim, records[claim.notebook].get(claim.id)) for claim in ledger if claim.notebook in records]
    return pd.DataFrame(rows, columns=list(_TABLE_COLUMNS), dtype=str)


def summary_markdown() -> str:
    """The README's table of claims: the number of claims per verdict, then one row a claim; reasons are in 00_report.

    Raises:
        RepcapError: a malformed ledger or record file.
    """
    frame = table()
    counts = pd.crosstab(frame["evidence"], frame["verdict"])
    verdicts = [name for name in VERDICTS if name in counts]
    lines = [
        f"{len(frame)} published claims, by what the verdict rests on: weights and simulations of this project (measured), "
        "the paper's own data recomputed, or formulas alone. Reasons are in [00_report](notebooks/00_report.ipynb).",
        "",
        f"| evidence | {' | '.join(verdicts)} |",
        f"| --- |{' --- |' * len(verdicts)}",
        *(
            f"| {kind} | {' | '.join(str(counts.loc[kind, name]) for name in verdicts)} |"
            for kind in EVIDENCE
            if kind in counts.index
        ),
        "",
        "| claim | evidence | published | ours | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in frame.itertuples():
        cells = (f"{row.statement} ({row.where})", row.evidence, row.published, row.ours or "–", row.verdict)
        lines.append(f"| {' | '.join(_markdown(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def update_readme(path: Path) -> bool:
    """Put `summary_markdown()` between the claims markers of a Markdown file; say whether the file changed.

    Raises:
        RepcapError: the file is absent, or does not hold each marker once and in order.
    """
    path = Path(path)
    if not path.is_file():
        raise RepcapError(f"no file {path}; give the README that holds the markers {BEGIN} and {END}")
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise RepcapError(f"{path} must hold {BEGIN} and, after it, {END}, each once; add the two lines")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return paths.write_text(path, f"{head}{BEGIN}\n\n{summary_markdown()}\n{END}{tail}")


def load_ledger() -> tuple[Claim, ...]:
    """All claims of `data/published/claims.csv`, checked.

    Raises:
        RepcapError: the file is absent or malformed; the message names the file and the line.
    """
    path = paths.PUBLISHED / "claims.csv"
    if not path.is_file():
        raise RepcapError(f"no ledger of claims at {path}; restore it from the repository")
    ledger: dict[str, Claim] = {}
    for line, row in _read_rows(path, _LEDGER_COLUMNS):
        claim = _parse_claim(row, f"{path}:{line}")
        if claim.id in ledger:
            raise RepcapError(f"{path}:{line}: the id {claim.id!r} occurs twice; ids are unique")
        ledger[claim.id] = claim
    return tuple(ledger.values())


def _table_row(claim: Claim, found: Record | None) -> tuple[str, ...]:
    published = _with_unit(claim.value, claim.unit)
    if found is None:
        return (claim.id, claim.statement, claim.where, claim.evidence, published, "", NOT_COMPUTED, "")
    result = verdict(claim, found.measured, found.caveat)
    reason = "; ".join(text for text in (found.caveat, found.note) if text)
    if result == CAVEAT and not reason:
        reason = _difference(claim, float(found.measured))
    ours = _with_unit(found.measured, claim.unit)
    reason = "" if result == REPRODUCED else reason
    return (claim.id, claim.statement, claim.where, claim.evidence, published, ours, result, reason)


def _difference(claim: Claim, measured: float) -> str:
    published = float(claim.value)
    if published == 0:
        return f"differs by {abs(measured):.2g}"
    return f"differs by {100 * abs(measured / published - 1):.2g} %"


def _within(claim: Claim, measured: float, tolerance: float) -> bool:
    published = float(claim.value)
    if claim.tolerance_kind == "digits":
        digits = int(tolerance)
        return float(f"{measured:.{digits}g}") == float(f"{published:.{digits}g}")
    scale = abs(published) if claim.tolerance_kind == "rel" else 1.0
    # The slack forgives the binary rounding of decimal values such as 0.3 - 0.1, nothing that can be measured.
    return abs(measured - published) <= tolerance * scale + 1e-12 * abs(published)


def _measured(claim: Claim, value: object) -> str:
    if claim.is_answer:
        if isinstance(value, str) and value in _ANSWERS:
            return value
        if isinstance(value, bool | np.bool_):
            return "yes" if value else "no"
        raise RepcapError(f"claim {claim.id!r} is a yes/no claim; record True or False, not {value!r}")
    number = _as_float(value)
    if not math.isfinite(number):
        raise RepcapError(f"claim {claim.id!r} is a number; record a finite number, not {value!r}")
    return f"{number + 0.0:.6g}"


def _as_float(value: object) -> float:
    """A real number as a float; NaN for anything else, infinity beyond the range of floats."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _find(ledger: Iterable[Claim], id: str) -> Claim:
    claims = {claim.id: claim for claim in ledger}
    if id not in claims:
        raise RepcapError(f"unknown claim {id!r}{_hint(id, claims)}")
    return claims[id]


def _hint(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(str(name), list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else "; see data/published/claims.csv for the names"


def _parse_claim(row: dict[str, str], place: str) -> Claim:
    for column in ("id", "statement", "where"):
        if not row[column]:
            raise RepcapError(f"{place}: the column {column} is empty; fill it in")
    if row["evidence"] not in EVIDENCE:
        raise RepcapError(f"{place}: evidence {row['evidence']!r} is not one of {', '.join(EVIDENCE)}")
    if row["notebook"] not in NOTEBOOKS:
        raise RepcapError(f"{place}: unknown notebook {row['notebook']!r}{_hint(row['notebook'], NOTEBOOKS)}")
    tolerance, caveat_tolerance = (_number(row[c], c, place) for c in ("tolerance", "caveat_tolerance"))
    if row["value"] in _ANSWERS:
        if tolerance is not None or caveat_tolerance is not None or row["tolerance_kind"]:
            raise RepcapError(f"{place}: a yes/no claim has no tolerance; leave the three tolerance columns empty")
    else:
        _check_tolerances(_number(row["value"], "value", place), tolerance, caveat_tolerance, row, place)
    return Claim(**{**row, "tolerance": tolerance, "caveat_tolerance": caveat_tolerance})


def _check_tolerances(
    value: float | None, tolerance: float | None, caveat_tolerance: float | None, row: dict[str, str], place: str
) -> None:
    kind = row["tolerance_kind"]
    given = [number for number in (tolerance, caveat_tolerance) if number is not None]
    if value is None or tolerance is None:
        raise RepcapError(f"{place}: a claim needs yes, no, or a number with a tolerance; fill in value and tolerance")
    if kind not in ("abs", "rel", "digits") or (kind == "rel" and value == 0):
        raise RepcapError(f"{place}: tolerance_kind {kind!r} is not abs, digits or, for a value other than 0, rel")
    if kind == "digits" and any(number != int(number) or not 1 <= number <= 6 for number in given):
        raise RepcapError(f"{place}: a tolerance in digits must be a whole number from 1 to 6")
    looser = caveat_tolerance is None or (
        caveat_tolerance < tolerance if kind == "digits" else caveat_tolerance > tolerance
    )
    if min(given) < 0 or not looser:
        raise RepcapError(f"{place}: tolerances must not be negative, and caveat_tolerance must be the looser one")


def _number(text: str, column: str, place: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise RepcapError(f"{place}: {column} = {text!r} is not a finite number")
    return number


def _checked_records(notebook: str, ledger: Iterable[Claim]) -> dict[str, Record]:
    path = _record_path(notebook)
    claims = {claim.id: claim for claim in ledger if claim.notebook == notebook}
    found: dict[str, Record] = {}
    for row in _read_records(path):
        if row.id not in claims or row.id in found:
            raise RepcapError(f"{path}: the id {row.id!r} is unknown or occurs twice; run notebook {notebook} again")
        if claims[row.id].is_answer != (row.measured in _ANSWERS):
            raise RepcapError(f"{path}: {row.id!r} holds {row.measured!r}, not the kind of value that the claim has")
        found[row.id] = row
    return found


def _read_records(path: Path) -> list[Record]:
    if not path.is_file():
        return []
    rows = []
    for line, row in _read_rows(path, _RECORD_COLUMNS):
        if row["measured"] not in _ANSWERS and _number(row["measured"], "measured", f"{path}:{line}") is None:
            raise RepcapError(
                f"{path}:{line}: the column measured is empty; delete the line and run the notebook again"
            )
        rows.append(Record(**row))
    return rows


def _read_rows(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with exactly these columns, each with its line number."""
    rows = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            if tuple(next(reader, ())) != columns:
                raise RepcapError(f"{path}:1: the header must be {','.join(columns)}")
            for cells in reader:
                if len(cells) != len(columns):
                    raise RepcapError(f"{path}:{reader.line_num}: {len(cells)} columns where {len(columns)} are needed")
                rows.append((reader.line_num, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise RepcapError(f"{path}:{reader.line_num}: malformed CSV ({error})") from error
    except UnicodeDecodeError as error:
        raise RepcapError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    return rows


def _csv_text(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def _record_path(notebook: str) -> Path:
    return paths.RECORDS / f"{notebook}.csv"


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if unit else value


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return text.replace("|", r"\|")
