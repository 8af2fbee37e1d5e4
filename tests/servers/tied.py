"""Becomes the command it is given, and dies with the process that started it, however that one ends. Linux only.

python tied.py COMMAND...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie() -> None:
    """This process is killed when its parent ends. It stays so over `exec`, and in a session of its own."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    tie()
    os.execvp(sys.argv[1], sys.argv[1:])
