"""Checks of numbers that a caller passes: whole numbers, and arrays of numbers of one shape."""

import operator

import numpy as np
from numpy.typing import ArrayLike

from repcap_utils.errors import RepcapError

_WRITTEN_OUT = 10**18  # a limit from here on is named by its power of ten


def is_whole(value: object) -> bool:
    """Whether `value` is an integer of Python, NumPy or torch; truth values and floats are none."""
    try:
        return not isinstance(value, bool | np.bool_) and operator.index(value) is not None
    except (TypeError, ValueError):
        return False


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """`value` as a Python integer, which does not overflow.

    Raises:
        RepcapError: it is no whole number (see `is_whole`), or outside `least` to `most` (None: no end); the message
            calls it `name`.
    """
    whole = is_whole(value)
    number = operator.index(value) if whole else least
    if whole and number >= least and (most is None or number <= most):
        return number
    end = "on" if most is None else f"to {most:.0e}" if most >= _WRITTEN_OUT else f"to {most}"
    raise RepcapError(f"{name} = {number if whole else value!r}: give a whole number from {least} {end}")


def numbers(name: str, value: ArrayLike, least: float = -np.inf) -> np.ndarray:
    """`value` as float64 of any shape, once it is known to be finite and at least `least`.

    Raises:
        RepcapError: it is not; the message calls it `name`.
    """
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        raise RepcapError(f"{name}: {error}; it must be a number or an array of numbers") from error
    if not np.isfinite(array).all():
        raise RepcapError(f"{name} = {array[~np.isfinite(array)][0]}; it must be finite")
    if (array < least).any():
        raise RepcapError(f"{name} = {array.min():g}; it must be {least:g} or more")
    return array


def whole_numbers(name: str, value: ArrayLike, least: int) -> np.ndarray:
    """`value` as Python integers of any size in an object array of its shape; floats without fraction are welcome.

    Raises:
        RepcapError: an entry is no whole number, or below `least`; the message calls it `name`.
    """
    array = np.asarray(value, dtype=object)
    entries = [whole_number(name, _without_fraction(name, entry), least) for entry in array.flat]
    return np.array(entries, dtype=object).reshape(array.shape)


def broadcast(**named: tuple[ArrayLike, float]) -> list[np.ndarray]:
    """`numbers` for each name=(value, least), broadcast to a common shape.

    Raises:
        RepcapError: a value is unusable, or the shapes differ.
    """
    return _of_one_shape({name: numbers(name, value, least) for name, (value, least) in named.items()})


def broadcast_whole(**named: tuple[ArrayLike, int]) -> list[np.ndarray]:
    """`whole_numbers` for each name=(value, least), broadcast to a common shape.

    Raises:
        RepcapError: a value is unusable, or the shapes differ.
    """
    return _of_one_shape({name: whole_numbers(name, value, least) for name, (value, least) in named.items()})


def _without_fraction(name: str, value: object) -> object:
    """A float that is a whole number as an integer, everything else as it is; what is no number is refused."""
    if is_whole(value):
        return value
    number = numbers(name, value).item()
    return int(number) if number.is_integer() else number


def _of_one_shape(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError as error:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise RepcapError(f"shapes do not broadcast: {shapes}") from error
