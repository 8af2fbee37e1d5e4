"""The tokens of a `.proto` file, each with its line."""

from __future__ import annotations

import re
from typing import NamedTuple

from pydanube.base.errors import SchemaInvalid

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>0[xX][0-9A-Fa-f]+|\d+)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<sign>[{}\[\]()<>=;,.:+-/])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
END = "end of the file"
_DIGITS_MAX = 40  # of a number


class Token(NamedTuple):
    kind: str  # name, int, float, text, sign or END
    text: str
    line: int


class Tokens:
    """The tokens of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens_of(text)
        self._at = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def take(self) -> Token:
        found = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return found

    def takes(self, text: str) -> bool:
        """Takes the next token if it is this one."""
        if self.next.text != text or self.next.kind == "text":
            return False
        self.take()
        return True

    def expect(self, text: str) -> None:
        if not self.takes(text):
            raise self.wrong(f"expected {text!r}")

    def name(self) -> str:
        if self.next.kind != "name":
            raise self.wrong("expected a name")
        return self.take().text

    def full_name(self) -> str:
        """A name with dots, which may begin with one."""
        found = "." if self.takes(".") else ""
        found += self.name()
        while self.takes("."):
            found += f".{self.name()}"
        return found

    def whole(self) -> int:
        sign = -1 if self.takes("-") else 1
        if self.next.kind != "int":
            raise self.wrong("expected a whole number")
        text = self.take().text
        try:
            if len(text) > _DIGITS_MAX:
                raise ValueError
            if text[:2] in ("0x", "0X"):
                return sign * int(text, 16)
            return sign * int(text, 8 if text.startswith("0") else 10)
        except ValueError:
            raise self.wrong(f"{text[:30]} is not a valid number") from None

    def string(self) -> str:
        if self.next.kind != "text":
            raise self.wrong("expected a string in quotes")
        found = ""
        while self.next.kind == "text":  # neighbours are one string
            found += _ESCAPE.sub(_unescaped, self.take().text[1:-1])
        return found

    def skip_block(self, opening: str, closing: str) -> None:
        """Skips everything up to the bracket that closes this one."""
        self.expect(opening)
        depth = 1
        while depth:
            token = self.take()
            if token.kind == END:
                raise self.wrong(f"expected {closing!r}")
            if token.kind == "sign":
                depth += (token.text == opening) - (token.text == closing)

    def wrong(self, reason: str) -> SchemaInvalid:
        token = self.next
        found = token.text if token.kind == END else repr(token.text[:50])
        return SchemaInvalid(f"line {token.line}: {reason}, got {found}")


def _tokens_of(text: str) -> list[Token]:
    found: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaInvalid(f"line {line}: {text[at : at + 20]!r} is not part of a Protobuf definition")
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(Token(kind, match[0], line))
        line += match[0].count("\n")
        at = match.end()
    found.append(Token(END, END, line))
    return found


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU":
        number = int(code[1:], 16) if len(code) > 1 else ord(code[0])
        return chr(number) if number < 0xD800 or 0xDFFF < number < 0x110000 else ""  # not half a surrogate pair
    return chr(int(code, 8) & 255) if code[0] in "01234567" else _LETTERS.get(code, code)
