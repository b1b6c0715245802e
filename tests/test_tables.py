import pytest

from repcap_utils import tables
from repcap_utils.errors import RepcapError


def test_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n")
    assert tables.read(path, ["a", "b"], {"a": int}).to_dict("records") == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not readable as CSV"),
        (b"\xff\xfe\x00", "is not readable as CSV"),
        (b"a,b\n1,2\n1,2,3\n", "is not readable as CSV"),
        (b"a,b\n1.5,x\n", "is not readable as CSV"),
        (b"a,c\n1,x\n", "has columns a, c; it needs a, b"),
    ],
)
def test_damage_is_one_line_that_names_the_file(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(RepcapError, match=message) as caught:
        tables.read(path, ["a", "b"], {"a": int})
    assert "t.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RepcapError, match="No such file"):
        tables.read(tmp_path / "t.csv")
