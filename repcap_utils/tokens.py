"""Token strings as a tokenizer stores them -> texts, and labels that can be read, drawn and told apart.

Tokenizers mark spaces and bytes in their own ways: byte-level BPE writes each byte as one printable character (`Ġ` is the
space), SentencePiece writes `▁` for a space and `<0xE8>` for a lone byte, WordPiece puts `##` before what continues a word.
"""

import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

SCHEMES = ("byte-level", "sentencepiece", "wordpiece", "plain")

_MARKERS = {"byte-level": "Ġ", "sentencepiece": "▁", "wordpiece": "##"}
_ESCAPES = {" ": "␣", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
# bytes.decode(errors="surrogateescape") turns byte 0xNN that is no UTF-8 into U+DCNN.
_LONE_BYTE = re.compile("[\udc80-\udcff]")
_WRITTEN_OUT = re.compile("<U\\+([0-9A-F]{4,6}(?: [0-9A-F]{4,6})*)>")
_LESS = "<U+003C>"
_BRACKETED = re.compile(r"\[[^\]\s]+\]|<[^>]+>")


def scheme(tokens: Sequence[str]) -> str:
    """The one of `SCHEMES` whose marker starts the most tokens; plain when no token starts with one."""
    counts = {name: sum(token.startswith(marker) for token in tokens) for name, marker in _MARKERS.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "plain"


def texts(tokens: Sequence[str]) -> list[str]:
    """What each token stands for: a leading space is a space, a lone byte is written `<0xE8>`.

    WordPiece stores no spaces: a token that starts a word gets one here, as in the other schemes.
    """
    decode = {"byte-level": _from_bytes, "sentencepiece": _from_sentencepiece, "wordpiece": _from_wordpiece}
    convert = decode.get(scheme(tokens), str)
    return [convert(token) for token in tokens]


def labels(tokens: Sequence[str]) -> list[str]:
    """A readable label for each token, all different and without spaces.

    Spaces are shown as `␣`, line ends and tabs as escapes, other invisible characters as `<U+200B>`, a combining mark on
    a dotted circle. Of tokens that read the same, all but the first get their row number: `the#512`.
    """
    readable = [_readable(text) for text in texts(tokens)]
    # A token may happen to read like another one's numbered label, so the numbered ones keep clear of all of them.
    taken, seen, found = set(readable), set(), []
    for row, label in enumerate(readable):
        if label in seen:
            while label in taken:
                label = f"{label}#{row}"
            taken.add(label)
        seen.add(label)
        found.append(label)
    return found


def drawable(label: str) -> str:
    """The label in characters that the figures' font has, with `$` safe from matplotlib's mathematics.

    Other characters are shown by their code points, as `<U+5973 738B>`: no font that comes with matplotlib has all
    scripts, and a figure must not depend on the fonts of a machine. A label that holds such text itself is shown with
    its `<` as a code point, so that labels that differ stay different.
    """
    glyphs = _glyphs()
    shown = []
    for drawn, run in groupby(_WRITTEN_OUT.sub(_escaped, label), lambda character: ord(character) in glyphs):
        characters = "".join(run)
        shown.append(characters if drawn else f"<U+{' '.join(f'{ord(character):04X}' for character in characters)}>")
    return "".join(shown).replace("$", r"\$")


def _escaped(match: re.Match[str]) -> str:
    """Text that reads like what `drawable` writes, unlike it; the code points that `labels` writes stay."""
    numbers = [int(number, 16) for number in match[1].split()]
    is_ours = all(number <= sys.maxunicode and unicodedata.category(chr(number))[0] not in "CZ" for number in numbers)
    is_missing = not any(number in _glyphs() for number in numbers)
    return match[0].replace("<", _LESS) if match[0] == _LESS or (is_ours and is_missing) else match[0]


@lru_cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


@lru_cache
def _byte_of() -> dict[str, int]:
    """The byte of each character of byte-level BPE: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _from_bytes(token: str) -> str:
    byte_of = _byte_of()
    # Added tokens are stored as they read, not byte by byte.
    if not all(character in byte_of for character in token):
        return token
    text = bytes(byte_of[character] for character in token).decode("utf-8", "surrogateescape")
    return _LONE_BYTE.sub(lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", text)


def _from_sentencepiece(token: str) -> str:
    return token.replace("▁", " ")


def _from_wordpiece(token: str) -> str:
    if token.startswith("##") and len(token) > 2:
        return token[2:]
    return token if _BRACKETED.fullmatch(token) else f" {token}"


def _readable(text: str) -> str:
    if not text:
        return "<empty>"
    shown = "".join(_visible(character) for character in text)
    return f"◌{shown}" if unicodedata.category(text[0]).startswith("M") else shown


def _visible(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return _code_point(character) if unicodedata.category(character)[0] in "CZ" else character


def _code_point(character: str) -> str:
    return f"<U+{ord(character):04X}>"
