"""What Spark's libraries say about a JVM that is gone: nothing, for the pipeline says it in one line."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed")

from py4j import java_gateway, protocol

from pydanube.pipeline.query import session


class Gone:
    """A connection to a JVM that is killed while it answers."""

    def send_command(self, command: str) -> str:
        raise protocol.Py4JNetworkError("Error while sending or receiving", when=protocol.ERROR_ON_RECEIVE)

    def close(self, reset: bool) -> None:
        pass


def test_a_call_that_fails_because_the_jvm_is_gone_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(java_gateway, "logging", java_gateway.logging)
    monkeypatch.setattr(java_gateway.GatewayClient, "_get_connection", lambda self: Gone())
    session.quiet()
    client = java_gateway.GatewayClient(gateway_parameters=java_gateway.GatewayParameters(auth_token="t"))
    assert client.send_command("c") == protocol.ERROR
    assert caplog.records == []
