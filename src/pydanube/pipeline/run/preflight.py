"""What is checked before Spark starts, so that a wrong name is reported within a second, before anything has begun.

Changes nothing. A broker that is not needed is not contacted.
"""

from __future__ import annotations

from pydanube.base.errors import PipelineNotFound, PipelineRunning, VerbUnknown
from pydanube.client import Client
from pydanube.pipeline.spec.broker import Address, OnBroker
from pydanube.pipeline.spec.context import Preflight
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.sinks import SINKS, Sink
from pydanube.pipeline.spec.source import SOURCES, Source
from pydanube.spark.broker_link import BrokerLink

OPEN_SECONDS = 0.5  # for a broker that is just starting
LIVE = ("starting", "running", "retrying", "stopping")


def check(
    flow: Flow, url: str, *, begun: bool, start: str | None, gone: str | None = None, running: bool = True
) -> Preflight:
    """Raises what is wrong. `gone` is a run that is known to have ended; for the rest, see `Preflight`."""
    check_kinds(flow)
    asked = Preflight(flow=flow, url=url, begun=begun, start=start, running=running)
    brokers: dict[Address, list[Source | Sink]] = {}
    for each in flow.connectors:
        if isinstance(each, OnBroker):
            brokers.setdefault(each.address(flow.url or url), []).append(each)
        else:
            each.preflight(asked)
    for address, connectors in brokers.items():
        asked.link = BrokerLink(*address)
        asked.link.open(OPEN_SECONDS)
        try:
            if running and flow.source in connectors:
                asked.link.wait(check_stopped(asked.link.client, flow.name, gone))
            for each in connectors:
                each.preflight(asked)
        finally:
            asked.link.close()
    return asked


def check_kinds(flow: Flow) -> None:
    """Raises `ConnectorConflict`."""
    SOURCES.check_connector(flow.source)
    for _, sink in flow.named_sinks:
        SINKS.check_connector(sink)


async def check_stopped(client: Client, name: str, gone: str | None = None) -> None:
    """Raises `PipelineRunning`."""
    try:
        found = await client.admin.pipeline(name)
    except (PipelineNotFound, VerbUnknown):
        return
    if found.state in LIVE and found.run != gone:
        raise PipelineRunning(f"{name} runs on {found.info.get('host')}, as run {found.run}")


def needs_broker(flow: Flow) -> bool:
    return any(isinstance(each, OnBroker) for each in flow.connectors)
