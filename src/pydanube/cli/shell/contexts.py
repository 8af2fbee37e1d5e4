"""Saved broker addresses, in a file that only its owner can read. The file is always read and written as a whole."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import yaml

from pydanube.cli.shell.failures import ContextNotFound, Failure

CONTEXTS_MAX = 1000  # the file is read whole by every command
FILE_BYTES_MAX = 1 << 20


class SavedBroker(NamedTuple):
    url: str
    ca_file: str | None = None
    token_file: str | None = None  # its path: a token is never kept here

    @property
    def shown(self) -> str:
        """The URL without user name and password: someone may have added them by hand."""
        from pydanube.client.transport import without_userinfo

        return without_userinfo(self.url)


def contexts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "danube" / "contexts.yaml"


@dataclass
class Contexts:
    """The saved brokers by name. `current` is the one to use if no option or variable names a broker."""

    saved: dict[str, SavedBroker] = field(default_factory=dict)
    current: str | None = None

    @classmethod
    def load(cls) -> Self:
        path = contexts_file()
        try:
            with path.open("rb") as file:
                found = yaml.safe_load(file.read(FILE_BYTES_MAX)) or {}
            current = found.get("current")
            saved = {str(name): SavedBroker(**each) for name, each in found.get("contexts", {}).items()}
        except FileNotFoundError:
            return cls()
        except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise Failure(
                f"{path} cannot be read: {reason}", "Correct the file, or delete it and add the contexts again."
            ) from None
        return cls(saved, current)

    def save(self) -> None:
        """Writes a temporary file and renames it, so that a crash cannot leave half a file behind."""
        path = contexts_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        contexts = {
            name: {key: value for key, value in each._asdict().items() if value} for name, each in self.saved.items()
        }
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # has mode 0600
        try:
            with os.fdopen(handle, "w") as file:
                yaml.safe_dump({"current": self.current, "contexts": contexts}, file, sort_keys=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def find(self, name: str) -> SavedBroker:
        if name not in self.saved:
            known = ", ".join(self.saved) or "none"
            help = f"Saved contexts: {known}. Add one with `danube context add`."
            raise ContextNotFound(f"unknown context {name!r}", help)
        return self.saved[name]
