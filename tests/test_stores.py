import pytest

from repcap_utils import stores
from repcap_utils.errors import RepcapError


def test_a_models_rows_take_the_place_of_its_earlier_ones(tmp_path):
    store = tmp_path / "new" / "store.csv"
    assert stores.read(store).empty
    stores.keep(store, [{"name": "b", "x": 1}, {"name": "b", "x": 2}, {"name": "b", "x": 0}])
    stores.keep(store, [{"name": "a", "x": 5}])
    stores.keep(store, [{"name": "b", "x": 4}, {"name": "b", "x": 3}])
    assert stores.read(store).to_numpy().tolist() == [["a", 5], ["b", 4], ["b", 3]]


def test_an_unchanged_store_is_not_written(tmp_path):
    store = tmp_path / "store.csv"
    stores.keep(store, [{"name": "a", "x": 0.25}])
    stamp = store.stat().st_mtime_ns
    stores.keep(store, [{"name": "a", "x": 0.25 + 1e-9}])
    assert store.stat().st_mtime_ns == stamp
    assert store.read_text() == "name,x\na,0.250000\n"


def test_rows_of_other_models_are_kept_character_by_character(tmp_path):
    store = tmp_path / "store.csv"
    store.write_text("name,x,y\nb,0.1000,007\n")
    stores.keep(store, [{"name": "a", "x": 1 / 3, "y": None, "z": 5}], digits=8)
    assert store.read_text() == "name,x,y,z\na,0.33333333,,5\nb,0.1000,007,\n"


def test_named_models_lose_their_rows(tmp_path):
    store = tmp_path / "store.csv"
    stores.keep(store, [], names=["a"])
    assert not store.exists()
    stores.keep(store, [{"name": "a", "x": 1}, {"name": "b", "x": 2}])
    stores.keep(store, [], names=["a"])
    assert store.read_text() == "name,x\nb,2\n"
    stores.keep(store, [], names=["b"])
    assert store.read_text() == "name,x\n"


@pytest.mark.parametrize("token", ["null", "nan", "None", "NA", "", '"', ",", "1", "␣猫"])
def test_tokens_come_back_as_they_were(tmp_path, token):
    store = tmp_path / "store.csv"
    stores.keep(store, [{"name": "a", "token": token, "x": 1}, {"name": "a", "token": "the", "x": 2}])
    assert stores.read(store)["token"].tolist() == [token, "the"]
    assert stores.read(store)["x"].tolist() == [1, 2]


def test_a_damaged_store_is_one_line(tmp_path):
    store = tmp_path / "store.csv"
    store.write_bytes(b"")
    with pytest.raises(RepcapError, match="not readable as CSV"):
        stores.keep(store, [{"name": "a", "x": 1}])


def test_a_variant_takes_the_place_of_that_variant_alone(tmp_path):
    store, by = tmp_path / "store.csv", ("name", "centred")
    stores.keep(store, [{"name": "a", "centred": "no", "x": 1}, {"name": "a", "centred": "no", "x": 2}], by)
    stores.keep(store, [{"name": "a", "centred": "yes", "x": 3}], by)
    stores.keep(store, [{"name": "a", "centred": "no", "x": 4}], by)
    assert stores.read(store).to_numpy().tolist() == [["a", "no", 4], ["a", "yes", 3]]


def test_a_foreign_table_is_neither_read_nor_overwritten(tmp_path):
    store = tmp_path / "store.csv"
    store.write_text("foo,bar\n1,2\n")
    for call in (lambda: stores.read(store), lambda: stores.keep(store, [{"name": "a", "k": 1}])):
        with pytest.raises(RepcapError, match=r"store.csv: no column 'name'"):
            call()
    assert store.read_text() == "foo,bar\n1,2\n"
