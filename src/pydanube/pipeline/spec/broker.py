"""What sources and sinks that are topics have in common: the broker that they name, and how its address is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydanube.base.errors import DanubeError, FlowInvalid
from pydanube.pipeline.spec.fields import Section, absolute, check_no_secrets
from pydanube.spark.options import DEFAULT_URL, Options, whole_name

Address = tuple[str, str | None]  # of a broker: URL and CA file


@dataclass(frozen=True, kw_only=True)
class OnBroker:
    """A source or sink that a broker serves. `url` is None for the broker that the command names."""

    url: str | None
    ca: str | None

    def address(self, url: str) -> Address:
        return self.url or url, self.ca


def parse_topic_name(path: str, name: str) -> str:
    try:
        return whole_name(name)
    except DanubeError as error:
        raise FlowInvalid(f"{path}: {error}") from None


def parse_url(section: Section) -> str | None:
    if (url := section.maybe_text("url")) is None:
        return None
    check_no_secrets(section.key("url"), url)
    return check_options(section, "url", {"topic": "x", "url": url}).url


def parse_ca(section: Section) -> str | None:
    ca = section.maybe_text("ca")
    return None if ca is None else absolute(ca, section.folder)


def check_options(section: Section, name: str, options: Mapping[str, str]) -> Options:
    """Checks options as the data source itself does."""
    try:
        return Options.of({"url": DEFAULT_URL, **options}, streaming=True)
    except DanubeError as error:
        raise section.wrong(name, str(error)) from None
