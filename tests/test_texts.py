import pytest

from repcap_utils import texts


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 min 0 s"), (61, "1 min 1 s"), (3599.6, "1 h 0 min"), (90000, "25 h 0 min")]
)
def test_durations(seconds, shown):
    assert texts.duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(None, "-"), (0, "0.0 MB"), (1_500_000, "1.5 MB"), (1_050_000_000, "1.05 GB")]
)
def test_bytes(count, shown):
    assert texts.bytes_shown(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.123456789, "0.12346"),
        (12345678, "12345678"),
        ([], "none"),
        (["a", 2], "a; 2"),
        ({"low": 1.0, "high": None}, "low 1, high -"),
    ],
)
def test_values(value, shown):
    assert texts.shown(value) == shown


def test_groups_have_one_column_of_values():
    assert list(texts.group("title", {"a": "1", "bcd": "2"})) == ["title", "  a    1", "  bcd  2"]


@pytest.mark.parametrize(
    ("log10", "whole", "least", "most"),
    [(13.5463, None, "10^13.54", "10^13.55"), (2.0, None, "10^2.00", "10^2.00"), (6.9239, 8392704, *["8,392,704"] * 2)],
)
def test_proved_numbers_are_rounded_to_the_safe_side(log10, whole, least, most):
    assert (texts.at_least(log10, whole), texts.at_most(log10, whole)) == (least, most)
