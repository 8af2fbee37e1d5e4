"""A pipeline's reports to the broker go on, whatever one of them fails with."""

from __future__ import annotations

import logging
import threading

import pytest

from pydanube.base.errors import DanubeError
from pydanube.pipeline.run import reporting
from pydanube.pipeline.run.reporting import STOPPED, Reporter


def test_reports_go_on_after_some_that_failed_unexpectedly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    back = threading.Event()
    failures = iter([None, OSError("no descriptors"), RuntimeError("no threads")])

    def report(self: Reporter) -> None:
        if (error := next(failures, None)) is not None:
            raise error

    def away(error: DanubeError | None) -> None:
        heard.append(str(error))
        if error is None:
            back.set()

    monkeypatch.setattr(reporting, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(Reporter, "_report", report)
    reporter = Reporter(
        "danube://127.0.0.1:1",
        None,
        "orders",
        "run-1",
        {},
        replaces=None,
        on_order=lambda _: None,
        on_lost=lambda _: None,
        on_away=away,
    )
    with caplog.at_level(logging.WARNING):
        reporter.begin()
        try:
            assert back.wait(10.0)
        finally:
            reporter.end(STOPPED)
    assert heard == ["OSError: no descriptors", "None"]
    assert len([each for each in caplog.records if each.name == reporting.__name__]) == 1
