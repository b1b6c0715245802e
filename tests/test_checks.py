import math

import numpy as np
import pytest
import torch

from repcap_utils import checks
from repcap_utils.errors import RepcapError


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.array(7), torch.tensor(7)])
def test_whole_numbers_of_any_kind_become_python_integers(value):
    found = checks.whole_number("k", value, 2, 7)
    assert type(found) is int and found == 7


@pytest.mark.parametrize(
    ("value", "least", "most", "message"),
    [
        (1, 2, None, "k = 1: give a whole number from 2 on"),
        (np.int64(9), 0, 8, "k = 9: give a whole number from 0 to 8"),
        (10**18, 0, 10**18 - 1, "k = 1000000000000000000: give a whole number from 0 to 999999999999999999"),
        (-1, 1, 10**300, r"k = -1: give a whole number from 1 to 1e\+300"),
        (2.0, 1, None, "k = 2.0: give a whole number from 1 on"),
        (math.nan, 1, None, "k = nan: give"),
        (math.inf, 1, None, "k = inf: give"),
        (True, 0, None, "k = True: give"),
        (np.bool_(True), 0, None, "k = np.True_: give"),
        ("2", 0, None, "k = '2': give"),
        (None, 0, None, "k = None: give"),
    ],
)
def test_what_is_no_whole_number_in_range_is_refused(value, least, most, message):
    with pytest.raises(RepcapError, match=f"^{message}"):
        checks.whole_number("k", value, least, most)


def test_arrays_hold_whole_numbers_of_any_size():
    k, d = checks.broadcast_whole(k=([[2], [10**400]], 2), d=([4.0, np.int32(5), 6], 2))
    assert k.shape == d.shape == (2, 3)
    assert k[1, 2] == 10**400
    assert [type(value) for value in d[0]] == [int, int, int]
    assert checks.whole_numbers("k", 10**400, 2).item() == 10**400


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.whole_numbers("d", [4, 2.5], 2), "d = 2.5: give a whole number from 2 on"),
        (lambda: checks.whole_numbers("d", [4.0, 1.0], 2), "d = 1: give a whole number from 2 on"),
        (lambda: checks.whole_numbers("d", [4, math.nan], 2), "d = nan; it must be finite"),
        (lambda: checks.whole_numbers("d", "many", 2), "d: could not convert"),
        (lambda: checks.numbers("d", [4, -math.inf]), "d = -inf; it must be finite"),
        (lambda: checks.numbers("d", [4, 0.5], 1), "d = 0.5; it must be 1 or more"),
        (lambda: checks.numbers("d", 10**400), "d: .* a number or an array of numbers"),
        (lambda: checks.broadcast(k=([1, 2], 0), d=([1, 2, 3], 0)), r"do not broadcast: k \(2,\), d \(3,\)"),
        (lambda: checks.broadcast_whole(k=([1, 2], 0), d=([1, 2, 3], 0)), r"do not broadcast: k \(2,\), d \(3,\)"),
    ],
)
def test_bad_arrays_are_named(call, message):
    with pytest.raises(RepcapError, match=message):
        call()


def test_numbers_share_a_shape():
    k, epsilon = checks.broadcast(k=(3, 1), epsilon=([0.1, 0.2], 0))
    assert k.tolist() == [3.0, 3.0]
    assert epsilon.tolist() == [0.1, 0.2]
