"""`GET /`: where things are, for people with a browser or curl."""

from __future__ import annotations

import re
from pathlib import Path

from api.http_client import Http, with_http
from pydanube.api.http.front_page import LINKS, _page
from pydanube.api.server import Server
from pydanube.operations.broker import BrokerAddress

ORDERS = "/api/v1/topics/default/orders"
BROWSER = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"


def test_a_browser_gets_a_page_with_links_that_work_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        page = await http.ask("GET", "/", accept=BROWSER)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        text = page.body.decode()
        links = re.findall(r"href=([^>]+)>", text)
        assert links == [path for path, _ in LINKS]
        assert not re.findall(r"src=|https?://|<script", text)
        for link in links:
            assert (await http.ask("GET", link)).status == 200

    with_http(tmp_path, story)


def test_others_get_text(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        for accept in ("*/*", "text/plain"):
            page = await http.ask("GET", "/", accept=accept)
            assert page.headers["content-type"].startswith("text/plain")
            assert page.body.decode().startswith("danube ")
            assert all(path in page.body.decode() for path, _ in LINKS)

    with_http(tmp_path, story)


def test_a_blocked_subscription_is_shown_and_the_broker_stays_ready(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        options = {"failure": {"max_redelivery_count": 0}}
        await http.ask("PUT", f"{ORDERS}/subscriptions/billing", {"start": "earliest", "options": options})
        await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": "bad"}]})
        [found] = (await http.ask("POST", f"{ORDERS}/subscriptions/billing/receive")).json["messages"]
        await http.ask("POST", f"{ORDERS}/subscriptions/billing/nack?lease={found['lease']}")
        page = (await http.ask("GET", "/", accept=BROWSER)).body.decode()
        assert "Blocked: subscription billing of /default/orders, at offset 0." in page
        assert (await http.ask("GET", "/readyz")).body == b"ready\n"

    with_http(tmp_path, story)


def test_what_others_named_is_escaped() -> None:
    page = _page(BrokerAddress("1", "danube://<b>", "<b>"), ["Blocked: subscription <script>alert(1)</script>"])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "danube://&lt;b&gt;" in page
