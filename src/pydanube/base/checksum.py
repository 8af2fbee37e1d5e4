"""CRC32C, the checksum of batch, journal and wire. Defined once, so that the library behind it can change."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

if google_crc32c.implementation != "c":  # pragma: no cover - the pure-Python one is 1,000 times slower
    raise ImportError("google-crc32c was installed without its C extension; install a wheel for this platform")


crc32c: Callable[[bytes], int] = google_crc32c.value
crc32c_extend: Callable[[int, bytes], int] = google_crc32c.extend  # the checksum of the bytes so far, followed by these
