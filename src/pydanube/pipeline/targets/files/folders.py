"""A place for files: a folder of this machine, or a prefix in object storage. All of it blocks.

Owns durability: a file that was closed is on disk, with its name. Owns errors: only `TargetFailed` and `TargetRefused`
leave it, and no text of theirs holds a credential. Credentials come from the environment of the process it runs in.
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

from pydanube.adapters.objects_url import ObjectsPlace, delta_options, parse_objects_url
from pydanube.adapters.placed_files import place as place_file
from pydanube.adapters.placed_files import write_gently
from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import DanubeError, OptionInvalid, TargetFailed, TargetRefused

CHUNK_BYTES = 8 << 20  # of an upload
READ_BYTES_MAX = 256 << 20  # of a file that is read as a whole
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
_WHERE = ("account_name", "bucket", "container", "endpoint", "filesystem", "share_name")  # a place is, beside its root
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


class Output(Protocol):
    """A file that grows: what pyarrow wants of one."""

    def write(self, data: Any, /) -> int: ...

    def tell(self) -> int: ...

    def close(self) -> None: ...


class Folder(Protocol):
    """Paths are relative, with slashes."""

    def create(self, path: str) -> Output:
        """A new file, there and durable when it is closed."""
        ...

    def read(self, path: str) -> bytes | None:
        """Nothing if there is no such file."""
        ...

    def put_new(self, path: str, data: bytes) -> bool:
        """All of it, durably, under a name that nobody has; false if somebody has."""
        ...

    def exists(self, path: str) -> bool: ...

    def move(self, source: str, target: str) -> bool:
        """Also if it was done before, or half of it. False if neither is there."""
        ...

    def delete(self, path: str, *, durably: bool = False) -> None:
        """Also if it is not there. Else than `durably` it may come back after a power cut."""
        ...

    def list(self, below: str) -> list[tuple[str, float]]:
        """Paths of all files below, with the time they were last changed; sorted."""
        ...

    def make(self) -> None:
        """The folder itself, where there are such."""
        ...

    def check_writable(self) -> None:
        """Leaves nothing behind, not even the folder."""
        ...

    def check_decides(self) -> None:
        """Whether `put_new` and `move` can do what they say."""
        ...


def place_of(uri: str) -> ObjectsPlace:
    """Raises `OptionInvalid`, which never shows a credential."""
    if "://" not in uri:
        uri = f"file://{quote(os.path.abspath(os.path.expanduser(uri)))}"
    try:
        return parse_objects_url(uri, {}, os.environ)
    except DanubeError as error:
        raise OptionInvalid(f"where to write: {error}") from None


def folder_at(uri: str) -> Folder:
    place = place_of(uri)
    return LocalFolder(Path(place.options["root"])) if place.scheme == "fs" else ObjectFolder(place)


def identity_of(uri: str) -> str:
    """One text for a place, however it is written: links are followed, and names of schemes are opendal's."""
    place = place_of(uri)
    root = place.options.get("root", "/")
    if place.scheme == "fs":
        return os.path.realpath(root)
    where = [text for name, text in sorted(place.options.items()) if name in _WHERE]
    return "|".join((place.scheme, *where, root.strip("/")))


def delta_place(uri: str) -> tuple[str, Mapping[str, str]]:
    """URI and options for deltalake; the options hold credentials."""
    place = place_of(uri)
    found = delta_options(place)
    if found is None:
        raise OptionInvalid(f"Delta tables can be in folders, S3, Google or Azure storage, not in {place.scheme}")
    return found


class ErrorTexts:
    """Errors of others into ours, without what must not be shown."""

    def __init__(self, place: ObjectsPlace | None = None) -> None:
        self._secrets = sorted(place.secrets(), key=len, reverse=True) if place else []

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


# -- of this machine ---------------------------------------------------------------------------------------------------


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
                    with suppress(FileNotFoundError):  # gone meanwhile
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

    def check_decides(self) -> None:
        """Every file system of POSIX can."""


class SyncedFile:
    """A file that is on disk, with its name and the names of its folders, when it is closed."""

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
    """Those that hold a new one: its name is durable when they are synced."""
    holders: list[Path] = []
    missing = folder
    while not missing.is_dir() and missing != missing.parent:
        holders.append(missing.parent)
        missing = missing.parent
    folder.mkdir(parents=True, exist_ok=True)
    return holders


# -- object storage ----------------------------------------------------------------------------------------------------


class ObjectFolder:
    """Through opendal. An object is there, as a whole, when its upload is."""

    def __init__(self, place: ObjectsPlace) -> None:
        self._place = place
        self._troubles = ErrorTexts(place)

    @cached_property
    def _operator(self) -> Any:
        import opendal
        from opendal import layers

        with self._typed("to open it"):
            operator = opendal.Operator(self._place.scheme, **self._place.options)
            operator = operator.layer(layers.TimeoutLayer(CONTROL_SECONDS, DATA_SECONDS))
            return operator.layer(layers.RetryLayer(RETRIES_MAX, 2.0, True, 2.0, 0.1))

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        try:
            yield
        except DanubeError:
            raise
        except Exception as error:  # opendal's have no base of their own
            raise self._troubles.typed(error, f"{self._place.shown}: {what}") from None

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
                    raise TargetFailed(f"{self._place.shown} has more than {LISTED_MAX} objects")
        return sorted(found)

    def make(self) -> None:
        """Prefixes need not be made."""

    def check_writable(self) -> None:
        probe = f"_danube/probe-{uuid4().hex}"
        with self._typed("it cannot be written"):
            self._operator.write(probe, b"")
            self._operator.delete(probe)

    def check_decides(self) -> None:
        can = self._operator.capability()
        if not (can.write_with_if_not_exists and can.copy and can.list):
            raise TargetRefused(
                f"{self._place.shown} cannot copy objects, or cannot create an object only if it does not exist"
            )


class _Upload:
    """What pyarrow wants of a file, and no error but ours."""

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
        """It goes when there is enough."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with self._typed():
                self._upload.close()
