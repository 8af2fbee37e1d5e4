"""Folders for files: on this machine, or a prefix in object storage. All calls block.

Files are durable, with their names, when they are closed. Errors are only `TargetFailed` and `TargetRefused`, and their
texts contain no credentials. Credentials come from the environment of the process.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote
from uuid import uuid4

from pydanube.adapters.objects_url import ObjectsLocation, delta_options, parse_objects_url
from pydanube.adapters.placed_files import place as place_file
from pydanube.adapters.placed_files import write_gently
from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import DanubeError, OptionInvalid, TargetFailed, TargetRefused

CHUNK_BYTES = 8 << 20  # of an upload
READ_BYTES_MAX = 256 << 20  # of a file that is read at once
CONTROL_SECONDS, DATA_SECONDS = 20.0, 60.0
RETRIES_MAX = 3
LISTED_MAX = 1_000_000
_TEXT_CHARACTERS_MAX = 300
_URL = re.compile(r"(?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s\"',)}\]]*", re.IGNORECASE)
_REFUSED = re.compile(
    r"permission ?denied|access ?denied|read-only file system|forbidden|unauthorized|InvalidAccessKeyId"
    r"|SignatureDoesNotMatch|NoSuchBucket|ContainerNotFound|bucket does not exist",
    re.IGNORECASE,
)
_WHERE = ("account_name", "bucket", "container", "endpoint", "filesystem", "share_name")  # and the root
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


class Output(Protocol):
    """A file that grows, as pyarrow expects it."""

    def write(self, data: Any, /) -> int: ...

    def tell(self) -> int: ...

    def close(self) -> None: ...


class Folder(Protocol):
    """Files in one place. Paths are relative and have slashes."""

    def create(self, path: str) -> Output:
        """A new file, which is visible and durable when it is closed."""
        ...

    def read(self, path: str) -> bytes | None:
        """None if there is no such file."""
        ...

    def put_new(self, path: str, data: bytes) -> bool:
        """Writes a whole file durably, if the name is not taken. Returns False if it is."""
        ...

    def exists(self, path: str) -> bool: ...

    def move(self, source: str, target: str) -> bool:
        """Moves a file, even if that was already done or half done. Returns False if neither file exists."""
        ...

    def delete(self, path: str, *, durably: bool = False) -> None:
        """Deletes a file if it exists. Unless `durably`, it may come back after a power failure."""
        ...

    def list(self, below: str) -> list[tuple[str, float]]:
        """The paths of all files below a path, with their modification times, sorted."""
        ...

    def make(self) -> None:
        """Creates the folder itself, if the storage has folders."""
        ...

    def check_writable(self) -> None:
        """Checks that files can be written, and leaves nothing behind, not even the folder."""
        ...

    def check_atomic(self) -> None:
        """Checks that `put_new` and `move` work as described."""
        ...


def location_of(uri: str) -> ObjectsLocation:
    """Raises `OptionInvalid`, which never contains a credential."""
    if "://" not in uri:
        uri = f"file://{quote(os.path.abspath(os.path.expanduser(uri)))}"
    try:
        return parse_objects_url(uri, {}, os.environ)
    except DanubeError as error:
        raise OptionInvalid(f"where to write: {error}") from None


def folder_at(uri: str) -> Folder:
    location = location_of(uri)
    return LocalFolder(Path(location.options["root"])) if location.scheme == "fs" else ObjectFolder(location)


def identity_of(uri: str) -> str:
    """The same text for every spelling of a location. Links are followed, and schemes are named as in opendal."""
    location = location_of(uri)
    root = location.options.get("root", "/")
    if location.scheme == "fs":
        return os.path.realpath(root)
    where = [text for name, text in sorted(location.options.items()) if name in _WHERE]
    return "|".join((location.scheme, *where, root.strip("/")))


def delta_location(uri: str) -> tuple[str, Mapping[str, str]]:
    """The URI and the options for deltalake. The options contain credentials."""
    location = location_of(uri)
    found = delta_options(location)
    if found is None:
        raise OptionInvalid(f"Delta tables can be in folders, S3, Google or Azure storage, not in {location.scheme}")
    return found


class ErrorTexts:
    """Turns errors of libraries into Danube's, without credentials."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)

    def text(self, error: BaseException) -> str:
        message = " ".join(str(error).partition("\n\nContext:")[0].split())
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return f"{type(error).__name__}: {_URL.sub('(a URL)', message)[:_TEXT_CHARACTERS_MAX]}"

    def typed(self, error: BaseException, what: str) -> DanubeError:
        if isinstance(error, OSError) and error.errno is not None:
            kind: type[DanubeError] = TargetRefused if error.errno in _NOT_ALLOWED else TargetFailed
            return kind(f"{what}: {os.strerror(error.errno)}")
        return (TargetRefused if _REFUSED.search(str(error)) else TargetFailed)(f"{what}: {self.text(error)}")


# -- on this machine ---------------------------------------------------------------------------------------------------


class LocalFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ErrorTexts().typed(error, f"{self.root}: {what}") from None

    def create(self, path: str) -> Output:
        with self._typed(f"to write {path}"):
            made = make_folders((self.root / path).parent)
            return SyncedFile(self.root / path, made)

    def read(self, path: str) -> bytes | None:
        with self._typed(f"to read {path}"):
            try:
                with open(self.root / path, "rb") as file:
                    if os.fstat(file.fileno()).st_size > READ_BYTES_MAX:
                        raise TargetFailed(f"{path} has more than {READ_BYTES_MAX} bytes")
                    return file.read()
            except FileNotFoundError:
                return None

    def put_new(self, path: str, data: bytes) -> bool:
        whole = self.root / path
        unfinished = whole.parent / f".{uuid4().hex}"
        with self._typed(f"to write {path}"):
            made = make_folders(whole.parent)
            try:
                write_gently(unfinished, data)
                place_file(unfinished, whole, self.root)
                for folder in made:
                    sync_path(folder)
                return True
            except FileExistsError:
                return False
            finally:
                unfinished.unlink(missing_ok=True)

    def exists(self, path: str) -> bool:
        with self._typed(f"to look for {path}"):
            return (self.root / path).exists()

    def move(self, source: str, target: str) -> bool:
        with self._typed(f"to move {source} to {target}"):
            made = make_folders((self.root / target).parent)
            try:
                os.rename(self.root / source, self.root / target)
            except FileNotFoundError:
                if not (self.root / target).exists():
                    return False
            for folder in ((self.root / target).parent, *made):
                sync_path(folder)
            return True

    def delete(self, path: str, *, durably: bool = False) -> None:
        with self._typed(f"to remove {path}"):
            (self.root / path).unlink(missing_ok=True)
            if durably and (self.root / path).parent.is_dir():
                sync_path((self.root / path).parent)

    def list(self, below: str) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        with self._typed(f"to list {below or 'it'}"):
            for folder, _, names in os.walk(self.root / below):
                for name in names:
                    whole = Path(folder, name)
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found.append((whole.relative_to(self.root).as_posix(), whole.stat().st_mtime))
                if len(found) > LISTED_MAX:
                    raise TargetFailed(f"{self.root} has more than {LISTED_MAX} files")
        return sorted(found)

    def make(self) -> None:
        with self._typed("it cannot be created"):
            for folder in make_folders(self.root):
                sync_path(folder)

    def check_writable(self) -> None:
        with self._typed("it cannot be written"):
            there = self.root
            while not there.exists() and there != there.parent:
                there = there.parent
            probe = there / f".danube-{uuid4().hex}"
            probe.touch()
            probe.unlink()

    def check_atomic(self) -> None:
        """Nothing to check: every POSIX file system does."""


class SyncedFile:
    """A file that is on disk when it is closed, with its name and the names of its folders."""

    def __init__(self, path: Path, folders: Sequence[Path], *, overwrite: bool = False) -> None:
        self._file = open(path, "wb" if overwrite else "xb")  # noqa: SIM115
        self._folders = (path.parent, *folders)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.flush()
                os.fdatasync(self._file.fileno())
            finally:
                self._file.close()
            for folder in self._folders:
                sync_path(folder)


def make_folders(folder: Path) -> list[Path]:
    """Creates the folder. Returns the parents of new folders, which must be synced to make their names durable."""
    holders: list[Path] = []
    missing = folder
    while not missing.is_dir() and missing != missing.parent:
        holders.append(missing.parent)
        missing = missing.parent
    folder.mkdir(parents=True, exist_ok=True)
    return holders


# -- object storage ----------------------------------------------------------------------------------------------------


class ObjectFolder:
    """Uses opendal. An object exists as a whole when its upload is complete."""

    def __init__(self, location: ObjectsLocation) -> None:
        self._location = location
        self._texts = ErrorTexts(location.secrets())

    @cached_property
    def _operator(self) -> Any:
        import opendal
        from opendal import layers

        with self._typed("to open it"):
            operator = opendal.Operator(self._location.scheme, **self._location.options)
            operator = operator.layer(layers.TimeoutLayer(CONTROL_SECONDS, DATA_SECONDS))
            return operator.layer(layers.RetryLayer(RETRIES_MAX, 2.0, True, 2.0, 0.1))

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        try:
            yield
        except DanubeError:
            raise
        except Exception as error:  # those of opendal have no common base class
            raise self._texts.typed(error, f"{self._location.shown}: {what}") from None

    def create(self, path: str) -> Output:
        with self._typed(f"to write {path}"):
            upload = self._operator.open(path, "wb", chunk=CHUNK_BYTES)
        return _Upload(upload, lambda: self._typed(f"to write {path}"))

    def read(self, path: str) -> bytes | None:
        from opendal import exceptions

        with self._typed(f"to read {path}"):
            try:
                if self._operator.stat(path).content_length > READ_BYTES_MAX:
                    raise TargetFailed(f"{path} has more than {READ_BYTES_MAX} bytes")
                return bytes(self._operator.read(path))
            except exceptions.NotFound:
                return None

    def put_new(self, path: str, data: bytes) -> bool:
        from opendal import exceptions

        with self._typed(f"to write {path}"):
            try:
                self._operator.write(path, data, if_not_exists=True)
            except (exceptions.ConditionNotMatch, exceptions.AlreadyExists):
                return False
            return True

    def exists(self, path: str) -> bool:
        with self._typed(f"to look for {path}"):
            return bool(self._operator.exists(path))

    def move(self, source: str, target: str) -> bool:
        from opendal import exceptions

        with self._typed(f"to move {source} to {target}"):
            try:
                self._operator.copy(source, target)
            except exceptions.NotFound:
                if not self._operator.exists(target):
                    return False
            self._operator.delete(source)
            return True

    def delete(self, path: str, *, durably: bool = False) -> None:
        with self._typed(f"to remove {path}"):
            self._operator.delete(path)

    def list(self, below: str) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        with self._typed(f"to list {below or 'it'}"):
            for entry in self._operator.list(f"{below.rstrip('/')}/" if below else "/", recursive=True):
                if not entry.path.endswith("/"):
                    changed = entry.metadata.last_modified
                    found.append((entry.path, changed.timestamp() if changed else 0.0))
                if len(found) > LISTED_MAX:
                    raise TargetFailed(f"{self._location.shown} has more than {LISTED_MAX} objects")
        return sorted(found)

    def make(self) -> None:
        """Does nothing: prefixes need not be created."""

    def check_writable(self) -> None:
        probe = f"_danube/probe-{uuid4().hex}"
        with self._typed("it cannot be written"):
            self._operator.write(probe, b"")
            self._operator.delete(probe)

    def check_atomic(self) -> None:
        can = self._operator.capability()
        if not (can.write_with_if_not_exists and can.copy and can.list):
            raise TargetRefused(
                f"{self._location.shown} cannot copy objects, or cannot create an object only if it does not exist"
            )


class _Upload:
    """A file as pyarrow expects it, which raises only errors of Danube."""

    def __init__(self, upload: Any, typed: Callable[[], Any]) -> None:
        self._upload = upload
        self._typed = typed
        self._written = 0
        self.closed = False

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        with self._typed():
            self._upload.write(content)
        self._written += len(content)
        return len(content)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Does nothing: data is uploaded when there is enough."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._typed():
                self._upload.close()
