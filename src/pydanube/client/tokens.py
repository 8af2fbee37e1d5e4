"""Where a client gets its token: for each connection again, so that it can be replaced before it expires."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydanube.base.errors import ArgumentInvalid, DanubeError, Unauthenticated
from pydanube.base.limits import TOKEN_BYTES_MAX

Supplier = Callable[[], str | Awaitable[str]]


class Tokens:
    """One source of tokens. Its errors, and how it is shown, never contain one."""

    def __init__(
        self, token: str | None = None, token_file: str | None = None, token_supplier: Supplier | None = None
    ) -> None:
        if sum(each is not None for each in (token, token_file, token_supplier)) != 1:
            raise ArgumentInvalid("use only one of token, token_file and token_supplier")
        self._token = token
        self._file = None if token_file is None else Path(token_file)
        self._supplier = token_supplier

    async def get(self) -> str:
        """The token for a new connection. Raises `Unauthenticated` if there is none."""
        if self._supplier is not None:
            try:
                found = self._supplier()
                token: object = await found if inspect.isawaitable(found) else found
            except DanubeError:
                raise
            except Exception as error:
                raise Unauthenticated(f"token_supplier failed: {type(error).__name__}") from error
        elif self._file is not None:
            token = self._read(self._file)
        else:
            token = self._token
        text = token.strip() if isinstance(token, str) else ""
        if not text or not text.isascii() or len(text) > TOKEN_BYTES_MAX:
            raise Unauthenticated(f"the token must have 1 to {TOKEN_BYTES_MAX} ASCII characters")
        return text

    def _read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                return file.read(TOKEN_BYTES_MAX + 2).decode("ascii", "replace")
        except OSError as error:
            raise Unauthenticated(f"the token file {path} cannot be read: {error.strerror}") from None
