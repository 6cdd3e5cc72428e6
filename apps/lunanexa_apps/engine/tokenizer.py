"""Text to tokens and back: words with their leading space, in pieces of eight letters at most.

``"".join(tokenise(text)) == text`` for every text, which makes usage countable and stop strings exact.
The pieces are like those of byte-pair encoders (a space belongs to the word after it), so that a client
sees chunks of a familiar shape.
"""

import re

# Every character is a letter or other numeral, a decimal digit, an underscore, a space, or none of
# these; each alternative takes at least one, so nothing can be left over.
_PIECE = re.compile(r" ?[^\W\d_]{1,8}| ?\d{1,3}| ?[^\w\s]|_|\s+(?!\S)|\s", re.UNICODE)
_LONGEST_PIECE = 16
_LONG_SPACE = re.compile(rf"(?s).{{1,{_LONGEST_PIECE}}}")


def tokenise(text: str) -> list[str]:
    tokens: list[str] = []
    for piece in _PIECE.findall(text):
        if len(piece) <= _LONGEST_PIECE:
            tokens.append(piece)
        else:
            tokens.extend(_LONG_SPACE.findall(piece))
    return tokens


def surely_more_than(text: str, limit: int) -> bool:
    """Whether the text has more than ``limit`` tokens, told from its length alone.

    It spares the work of cutting a text that can't fit; a False says nothing.
    """
    return len(text) > limit * _LONGEST_PIECE
