"""The one exception of this package."""


class RepcapError(ValueError):
    """A problem that a user can fix.

    The message is one line: what is wrong, with the name and the value of the input, and what to do about it.
    The command line prints it and exits with status 1; in Python it is an ordinary `ValueError`.
    """
