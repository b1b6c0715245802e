"""Reading the project's CSV files: whatever is wrong with one is a single line that names the file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from repcap_utils.errors import RepcapError


def read(
    path: Path,
    columns: Sequence[str] | None = None,
    types: Mapping[str, type | str] | type | None = None,
    *,
    literal: bool = False,
) -> pd.DataFrame:
    """The table in a CSV file.

    Args:
        path: the file.
        columns: the columns it must have, in order; None accepts any.
        types: the type of columns whose type matters (an integer column must hold integers only), or one for all of them.
        literal: whether null, nan, None and the like are texts, as where tokens are stored, and not missing values.

    Raises:
        RepcapError: no such file, not a CSV, other columns, or a value that is not of its type.
    """
    try:
        table = pd.read_csv(path, dtype=types, keep_default_na=not literal)
    except OSError as error:
        raise RepcapError(
            f"cannot read {path}: {error.strerror or error}; restore it with `git checkout {path}`"
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RepcapError(f"{path} is not readable as CSV ({reason}); restore it with `git checkout {path}`") from error
    if columns is not None and list(table.columns) != list(columns):
        raise RepcapError(
            f"{path} has columns {', '.join(table.columns)}; it needs {', '.join(columns)}; restore it from git"
        )
    return table
