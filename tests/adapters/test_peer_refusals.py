"""Who is refused on the peer port, with a sentence in the logs of both, and how little a stranger can hold (S7)."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from adapters.peers import CARL, HERE, Running, heartbeat, running
from certificates import Authority
from pydanube.adapters import peer_links
from pydanube.adapters.peer_links import PeerTls
from pydanube.base.errors import (
    PeerClusterDiffers,
    PeerIdentityDiffers,
    PeerProtocolError,
    PeerRefused,
    PeerSecretDiffers,
)
from waiting import until
from wire.peer.nodes import ANNA, BERT, SECRET

pytestmark = pytest.mark.slow
OTHER_SECRET = b"a secret of another cluster"


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(
    ("dials", "secret", "error"),
    [
        (ANNA, OTHER_SECRET, PeerSecretDiffers),
        (replace(ANNA, cluster="d0" * 16), SECRET, PeerClusterDiffers),
        (replace(ANNA, incarnation=1), SECRET, PeerClusterDiffers),
        (replace(BERT, boot=1), SECRET, PeerIdentityDiffers),
    ],
)
def test_a_refusal_is_in_the_log_of_both(
    dials: Any, secret: bytes, error: type[PeerRefused], run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with running(dials, BERT, secrets=(secret, SECRET)) as (anna, bert):
            anna.knows(bert)
            anna.links.send(BERT.identity, heartbeat(1))

            def said(about: str) -> bool:
                return any(about in each.message and error.help in each.message for each in caplog.records)

            await until(lambda: said(f"the link to node {BERT.identity}") and said("a node at 127.0.0.1"))
            assert bert.host.messages == []

    run(story())


def test_two_nodes_with_swapped_addresses_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with running(ANNA, BERT, CARL) as (anna, bert, carl):
            anna.links.connect(BERT.identity, carl.address)
            sentence = f"node {BERT.identity} was expected at this address; {CARL.identity} is here"
            await until(lambda: caplog.text.count(sentence) >= 2)  # both say so
            assert bert.host.messages == carl.host.messages == []

    asyncio.run(story())


def test_the_same_sentence_is_not_logged_with_every_attempt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Eager:
        attempts = 0

        def after(self, failures: int, below: Any) -> float:
            self.attempts = failures
            return 0.0

    eager = Eager()
    monkeypatch.setattr(peer_links, "RETRY", eager)

    async def story() -> None:
        async with running(ANNA, BERT, secrets=(OTHER_SECRET, SECRET)) as (anna, bert):
            anna.knows(bert)
            await until(lambda: eager.attempts >= 5)

    asyncio.run(story())
    assert len(caplog.records) == 2


@pytest.mark.parametrize("first", [b"DANUBE1\n", b"PRI * HTTP/2.0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
def test_a_client_on_the_peer_port_is_turned_away(first: bytes, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with running(BERT) as (bert,):
            reader, writer = await asyncio.open_connection(*bert.address)
            writer.write(first)
            answer = await reader.read()
            assert answer[4:5] == b"\3"  # REFUSED, and nothing that it could learn from
            assert answer[-1] == PeerProtocolError.reason
            writer.close()
            await until(lambda: "does not begin with the peer protocol's preface" in caplog.text)

    run(story())


def test_a_silent_connection_is_closed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_links, "HELLO_SECONDS", 0.05)

    async def story() -> None:
        async with running(BERT) as (bert,):
            reader, writer = await asyncio.open_connection(*bert.address)
            assert await reader.read() == b""
            writer.close()

    run(story())


def test_strangers_cannot_keep_nodes_out(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_links, "PEER_GREETING_MAX", 3)

    async def story() -> None:
        async with running(ANNA, BERT) as (anna, bert):
            silent = [await asyncio.open_connection(*bert.address) for _ in range(5)]
            anna.knows(bert)
            anna.links.send(BERT.identity, heartbeat(1))
            await until(lambda: bert.rounds() == [1])
            assert len(bert.links._greeting) <= 3
            for reader, _ in silent[:2]:  # the oldest had to go
                assert await reader.read() == b""
            for _, writer in silent:
                writer.close()

    run(story())


def test_links_of_other_nodes_have_a_bound(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(peer_links, "PEER_LINKS_MAX", 1)

    async def story() -> None:
        async with running(ANNA, BERT, CARL) as (anna, bert, carl):
            anna.knows(bert)
            anna.links.send(BERT.identity, heartbeat(1))
            await until(lambda: bert.rounds() == [1])
            carl.knows(bert)
            await until(lambda: "there are already 1" in caplog.text)

    asyncio.run(story())


# -- TLS ---------------------------------------------------------------------------------------------------------------


def mutual(authority: Authority, name: str = "broker") -> PeerTls:
    certificate, key = authority.sign(name=name)
    connecting = ssl.create_default_context(cafile=str(authority.file))
    connecting.load_cert_chain(certificate, key)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(certificate, key)
    accepting.load_verify_locations(authority.file)
    accepting.verify_mode = ssl.CERT_REQUIRED
    return PeerTls(connecting, accepting)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nodes_with_certificates_of_one_authority_work_together(
    version: ssl.TLSVersion, run: Any, tmp_path: Path
) -> None:
    tls = mutual(Authority(tmp_path))
    tls.connecting.maximum_version = version

    async def story() -> None:
        async with running(ANNA, BERT, tls=tls) as (anna, bert):
            anna.knows(bert)
            anna.links.send(BERT.identity, heartbeat(1))
            await until(lambda: bert.rounds() == [1])
            assert await anna.links.introduce(bert.address) == BERT

    run(story())


def test_a_node_without_a_trusted_certificate_is_refused_in_both_logs(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = mutual(Authority(tmp_path)), mutual(Authority(tmp_path, "other"), "stranger")
    foreign = PeerTls(ssl.create_default_context(cafile=str(tmp_path / "authority.pem")), theirs.accepting)

    async def story() -> None:
        async with running(BERT, tls=ours) as (bert,):
            for tls in (foreign, theirs):
                anna = Running(ANNA, SECRET, tls)
                caplog.clear()
                anna.knows(bert)
                await until(lambda: "the link to node" in caplog.text and "a node at 127.0.0.1" in caplog.text)
                await anna.links.stop()
            assert bert.host.messages == []

    run(story())


def test_a_node_without_tls_is_refused(run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = mutual(Authority(tmp_path))

    async def story() -> None:
        async with running(BERT, tls=tls) as (bert,):
            anna = Running(ANNA, SECRET, None)
            anna.knows(bert)
            await until(lambda: "the link to node" in caplog.text and "a node at 127.0.0.1" in caplog.text)
            await anna.links.stop()

    run(story())


def test_proofs_cannot_be_carried_from_one_tls_connection_to_another(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Someone in between has a good certificate, ends TLS on both sides, and passes the bytes on."""
    tls = mutual(Authority(tmp_path))

    async def story() -> None:
        async with running(ANNA, BERT, tls=tls) as (anna, bert):

            async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while data := await reader.read(1 << 16):
                    writer.write(data)
                writer.close()

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                further = await asyncio.open_connection(*bert.address, ssl=tls.connecting)
                await asyncio.gather(carry(reader, further[1]), carry(further[0], writer), return_exceptions=True)

            server = await asyncio.start_server(between, *HERE, ssl=tls.accepting)
            host, port, *_ = server.sockets[0].getsockname()
            anna.links.connect(BERT.identity, bert.address._replace(host=host, port=port))
            await until(lambda: caplog.text.count(PeerSecretDiffers.help) == 2)
            assert bert.host.messages == []
            anna.links.disconnect(BERT.identity)
            server.close()

    run(story())
