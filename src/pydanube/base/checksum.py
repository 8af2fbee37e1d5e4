"""CRC32C, the checksum of batch, journal and wire. One place, so that the library behind it can change."""

from __future__ import annotations

import google_crc32c

if google_crc32c.implementation != "c":  # pragma: no cover - the pure-Python one is 1,000 times slower
    raise ImportError("google-crc32c was installed without its C extension; install a wheel for this platform")


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))


def crc32c_extend(crc: int, data: bytes) -> int:
    """The checksum of what `crc` covers followed by `data`."""
    return int(google_crc32c.extend(crc, data))
