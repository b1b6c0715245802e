"""Facts as text: how values, byte counts and durations are written, and groups of lines under a heading."""

import math
from collections.abc import Iterator


def shown(value: object) -> str:
    """A value, or a dict or list of values, as a few words; floats to five digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(shown, value)) or "none"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def bytes_shown(count: int | None) -> str:
    """A number of bytes in MB or GB (powers of ten), None as a dash."""
    return "-" if count is None else f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Seconds as minutes and seconds, or as hours and minutes."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_seconds} s"


def at_least(log10: float, whole: int | None) -> str:
    """A proved lower bound: the whole number where it is known, else a power of ten rounded down."""
    return f"10^{math.floor(100 * log10) / 100:.2f}" if whole is None else f"{whole:,}"


def at_most(log10: float, whole: int | None) -> str:
    """A proved upper bound: the whole number where it is known, else a power of ten rounded up."""
    return f"10^{math.ceil(100 * log10) / 100:.2f}" if whole is None else f"{whole:,}"


def aligned(lines: dict[str, str]) -> Iterator[str]:
    """Lines with their values in one column."""
    width = max(map(len, lines), default=0)
    yield from (f"{key:<{width}}  {value}" for key, value in lines.items())


def group(title: str, lines: dict[str, str]) -> Iterator[str]:
    """A heading and its lines, indented, with their values in one column."""
    yield title
    yield from (f"  {line}" for line in aligned(lines))
