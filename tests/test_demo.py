"""`make demo`, small, and stopped by Ctrl-C: what was sent is finished and checked, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import pytest

from pydanube.base.errors import JavaMissing
from pydanube.spark.launch import find_java

DEMO = Path(__file__).resolve().parent.parent / "examples/demo/run.py"
SECONDS_MAX = 300  # on a machine that is busy; alone it takes about twenty
LEFT_SECONDS_MAX = 20


def alive(marker: str) -> list[str]:
    """Commands of processes that have it in their environment: children inherit it, and theirs, in whatever session."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
        except OSError:
            continue  # it is gone, or somebody else's
    return found


def test_the_demonstration_checks_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    try:
        find_java()
    except JavaMissing as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))
    marker, plot = uuid4().hex, tmp_path / "demo.png"
    command = [sys.executable, str(DEMO), "--seconds", "600", "--rate", "400", "--plot", str(plot)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"DEMO_MARKER": marker}, cwd=tmp_path
    ) as demo:
        assert demo.stdout is not None
        said = []
        for line in demo.stdout:
            said.append(line)
            if " read " in line and " 0 read" not in line and demo.poll() is None:
                demo.send_signal(signal.SIGINT)  # with the first rows that the pipeline has read
                break
        assert alive(marker)
        rest, _ = demo.communicate(timeout=SECONDS_MAX)
    text = "".join(said) + rest
    assert demo.returncode == 0, text
    assert "no more orders" in text
    assert "every window and city, one by one: ok" in text
    assert text.count("  ok  ") == 6
    assert plot.read_bytes().startswith(b"\x89PNG")
    until = monotonic() + LEFT_SECONDS_MAX
    while left := alive(marker):
        assert monotonic() < until, left
        sleep(0.1)  # the JVM ends when it notices that nobody is there
