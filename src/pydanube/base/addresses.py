"""Host and port, as people write them. Resolves nothing and opens nothing."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple, Self

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")
PORT_MAX = 65_535


class HostPort(NamedTuple):
    """`host:port`; an IPv6 address is written in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ValueError` if the text is not host:port."""
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= PORT_MAX):
            raise ValueError("the port is missing or not a port number")
        if host.startswith("[") and host.endswith("]"):
            host = str(ipaddress.IPv6Address(host[1:-1]))
        elif not _NAME.fullmatch(host):
            raise ValueError("the host is missing")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Names other than localhost are not resolved and count as public."""
        address = self._literal
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_everywhere(self) -> bool:
        """Whether it means all addresses of the machine, so that clients cannot use it as an address."""
        address = self._literal
        return address is not None and address.is_unspecified

    @property
    def _literal(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None
