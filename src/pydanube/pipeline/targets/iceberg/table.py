"""An Iceberg table in its catalog: how it is found, created and checked, what is refused, and the library's errors.

Credentials come from the environment: `PYICEBERG_CATALOG__NAME__…`, the file `.pyiceberg.yaml`, or what the tools of
the storage use. They are in no spec and in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.config import Config

from pydanube.base.errors import (
    DanubeError,
    OptionInvalid,
    SchemaMismatch,
    TableUnsupported,
    TargetFailed,
    TargetRefused,
)
from pydanube.base.redaction import is_secret
from pydanube.pipeline.targets.files.folders import ErrorTexts, LocalFolder
from pydanube.pipeline.targets.iceberg.expiry import EXPIRY_PROPERTIES
from pydanube.pipeline.targets.iceberg.identity import iceberg_identity, sqlite_file
from pydanube.pipeline.targets.iceberg.io import sync_commits, synced_settings
from pydanube.pipeline.targets.iceberg.types import check_partition, missing_columns, new_table
from pydanube.pipeline.targets.target import TransactionalTarget
from pydanube.pipeline.targets.upsert import check_upsert

CATALOGS_MAX = 8  # open in one process
SCHEMA_COMMITS_MAX = 10
FORMAT_VERSION_MAX = 2
OWN_NAME = "default"  # of a catalog that is given by its type and address only
_PROPERTIES = {  # of tables that are created here, which get a commit for each batch for months
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    **EXPIRY_PROPERTIES,
}
_REFUSED = (BadRequestError, ForbiddenError, NotInstalledError, OAuthError, UnauthorizedError, ImportError)
_READ_ONLY = re.compile(r"readonly database|read-only|ACCESS_DENIED|no such module", re.IGNORECASE)
_URI = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table of a catalog, which is given by its name, or by its type and address. Contains no credentials."""

    table: tuple[str, ...]
    catalog: str | None = None
    type: str | None = None
    uri: str | None = None
    warehouse: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        return f"iceberg:{'.'.join((self.catalog or OWN_NAME, *self.table))}"

    @property
    def identity(self) -> str:
        warehouse = self.warehouse or self.configured("warehouse")
        return iceberg_identity(self.catalog or OWN_NAME, self.catalog_uri, warehouse, ".".join(self.table))

    @property
    def catalog_uri(self) -> str | None:
        return self.uri or self.configured("uri")

    def configured(self, name: str) -> str | None:
        found = (Config().get_catalog_config(self.catalog) or {}).get(name) if self.catalog else None
        return found if isinstance(found, str) else None

    def check(self) -> None:
        """Raises `OptionInvalid`, which never contains a credential."""
        if len(self.table) < 2 or not all(self.table):
            raise OptionInvalid("the table of an iceberg sink must be NAMESPACE.NAME")
        if self.type is None and self.uri is not None and self.catalog is None:
            raise OptionInvalid("an iceberg sink with uri needs type (sql, rest, hive …), or the name of a catalog")
        for name, text in self.properties:
            if is_secret(re.sub(r"\W", "_", name.lower())) or "authorization" in name.lower():
                raise OptionInvalid(f"the property {name} of an iceberg sink is a credential; {_IN_THE_ENVIRONMENT}")
            _check_uri(name, text)
        _check_uri("uri", self.uri or "")
        _check_uri("warehouse", self.warehouse or "")
        if self.warehouse and _URI.match(self.warehouse) and re.search("[?#]", self.warehouse):
            raise OptionInvalid("the warehouse of an iceberg sink must not contain ? or #")

    def load(self) -> Table:
        try:
            return open_catalog(self).load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise TargetRefused(f"{self.label} is gone: the catalog has no such table") from None

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Turns errors of the library into Danube's, in one line."""
        try:
            yield
        except DanubeError:
            raise
        except Exception as error:
            close_catalog(self)
            raise typed(error, self) from None


_IN_THE_ENVIRONMENT = "name a catalog and give it in PYICEBERG_CATALOG__NAME__… of the environment"


def _check_uri(name: str, text: str) -> None:
    try:
        secret = _URI.match(text) and urlsplit(text).password is not None
    except ValueError:
        raise OptionInvalid(f"the {name} of an iceberg sink cannot be read as a URI") from None
    if secret:
        raise OptionInvalid(f"the {name} of an iceberg sink has a password; {_IN_THE_ENVIRONMENT}")


def typed(error: Exception, address: TableAddress) -> DanubeError:
    texts = ErrorTexts(_secrets(address))
    if isinstance(error, _REFUSED) or _READ_ONLY.search(str(error)):
        return TargetRefused(f"{address.label}: {texts.text(error)}")
    return texts.typed(error, address.label)


# -- catalogs ----------------------------------------------------------------------------------------------------------

_catalogs: dict[tuple[int, TableAddress], Catalog] = {}  # by process, because a forked process must not use them


def open_catalog(address: TableAddress) -> Catalog:
    key = os.getpid(), address
    if key not in _catalogs:
        if len(_catalogs) >= CATALOGS_MAX:
            _close(next(iter(_catalogs)))
        name = address.catalog or (OWN_NAME if address.type else None)
        _catalogs[key] = load_catalog(name, **_settings(address, os.environ))
        sync_commits(_catalogs[key])
    return _catalogs[key]


def close_catalog(address: TableAddress) -> None:
    """The next call opens a new connection."""
    _close((os.getpid(), address))


def _close(key: tuple[int, TableAddress]) -> None:
    catalog = _catalogs.pop(key, None)
    if catalog is not None and key[0] == os.getpid():
        with suppress(Exception):
            catalog.close()


def _settings(address: TableAddress, environment: Mapping[str, str]) -> dict[str, str]:
    """The given settings, and the storage's address from the environment. Credentials are found by its own library."""
    given = {"type": address.type, "uri": address.uri, "warehouse": address.warehouse}
    settings = {name: text for name, text in given.items() if text is not None}
    settings.update(synced_settings(address.warehouse or address.configured("warehouse")))
    settings.update(address.properties)
    if settings.get("warehouse", "").startswith(("s3:", "s3a:", "s3n:")):
        for name, variables in _S3.items():
            found = [environment[each] for each in variables if environment.get(each)]
            if found:
                settings.setdefault(name, found[0])
    return settings


_S3 = {"s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}


def _secrets(address: TableAddress) -> list[str]:
    catalog = _catalogs.get((os.getpid(), address))
    found = [text for name, text in os.environ.items() if name.startswith("PYICEBERG_") and is_secret(name.lower())]
    if catalog is not None:
        found += [str(text) for name, text in catalog.properties.items() if is_secret(re.sub(r"\W", "_", name.lower()))]
    return [text for text in found if text]


# -- the table ---------------------------------------------------------------------------------------------------------


def check_table(address: TableAddress, rows: pa.Schema, wanted: TransactionalTarget) -> bool:
    """Returns whether the table or columns must be created. Creates nothing, not even the file of a catalog."""
    if wanted.keys:
        check_upsert(rows, wanted.keys, wanted.sequence_by)
    table = _found(address)
    if table is None:
        new_table(rows, wanted.partition_by)
        if address.warehouse is not None and address.warehouse.startswith("file://"):
            _check_folder(address.warehouse.removeprefix("file://"), address.label)
        return True
    check_features(table, address.label, wanted.keys)
    _check_partitions(table, address.label, wanted.partition_by)
    if not wanted.merge_schema:
        check_columns(table, rows, address.label)
    _check_writable(table, address.label)
    return bool(missing_columns(rows, table.schema(), address.label))


def _found(address: TableAddress) -> Table | None:
    file = sqlite_file(address.catalog_uri)
    if file is not None and not os.path.exists(file) and os.path.isdir(os.path.dirname(file)):
        _check_folder(os.path.dirname(file), address.label)
        return None
    try:
        return open_catalog(address).load_table(address.table)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def prepare_table(address: TableAddress, rows: pa.Schema, wanted: TransactionalTarget) -> Table:
    """Creates the table if there is none, or adds columns if that is allowed. It was checked before."""
    catalog = open_catalog(address)
    try:
        table = catalog.load_table(address.table)
    except (NoSuchTableError, NoSuchNamespaceError):
        table = _create(catalog, address, rows, wanted)
    check_features(table, address.label, wanted.keys)
    for _ in range(SCHEMA_COMMITS_MAX):
        _check_partitions(table, address.label, wanted.partition_by)
        new = missing_columns(rows, table.schema(), address.label)
        if not new:
            return table
        if not wanted.merge_schema:
            check_columns(table, rows, address.label)
        try:
            with table.update_schema() as update:
                for each in new:
                    update.add_column((each.name,), each.field_type)
        except CommitFailedException:
            pass  # another writer was faster, perhaps with these columns
        table = catalog.load_table(address.table)
    raise TargetFailed(f"{address.label}: its schema was changed by others {SCHEMA_COMMITS_MAX} times in the meantime")


def check_columns(table: Table, rows: pa.Schema, label: str) -> None:
    """Checks that the table has all columns of the rows."""
    if new := missing_columns(rows, table.schema(), label):
        names = ", ".join(each.name for each in new)
        raise SchemaMismatch(f"{label} has no column {names}; merge_schema adds what is missing")


def _create(catalog: Catalog, address: TableAddress, rows: pa.Schema, wanted: TransactionalTarget) -> Table:
    schema, spec = new_table(rows, wanted.partition_by)
    for length in range(1, len(address.table)):
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(address.table[:length])
    try:
        return catalog.create_table(address.table, schema, partition_spec=spec, properties=_PROPERTIES)
    except TableAlreadyExistsError:
        return catalog.load_table(address.table)


def check_features(table: Table, label: str, keys: Sequence[str]) -> None:
    """Raises `TableUnsupported` for a feature that files written here do not have."""
    version = int(table.metadata.format_version)
    if version > FORMAT_VERSION_MAX:
        raise TableUnsupported(f"{label} is of format version {version}: row lineage is not supported; use version 2")
    for each in table.spec().fields:
        if not isinstance(each.transform, IdentityTransform):
            source = table.schema().find_column_name(each.source_id)
            raise TableUnsupported(
                f"{label} is partitioned by {each.transform}({source}); only plain columns are supported"
            )
        if each.source_id not in {field.field_id for field in table.schema().fields}:
            raise TableUnsupported(f"{label} is partitioned by {each.name}, which is inside another column")
        check_partition(table.schema().find_field(each.source_id))
    for name, what in _FOREIGN.items():
        if table.properties.get(name):
            raise TableUnsupported(f"{label} has the property {name}: {what}")
    if keys:
        _check_rows_change(table, label, keys)


_FOREIGN = {
    "encryption.key-id": "encryption is not supported",
    "write.py-location-provider.impl": "its files are placed by a class that cannot be run here",
    "write.wap.enabled": "writes would wait to be published, but batches are visible at once",
}


def _check_rows_change(table: Table, label: str, keys: Sequence[str]) -> None:
    identifiers = table.schema().identifier_field_names()
    if identifiers and identifiers != set(keys):
        raise TableUnsupported(
            f"{label} has the identifier fields {', '.join(sorted(identifiers))}, but the keys of upsert "
            f"are {', '.join(keys)}"
        )
    snapshot = table.current_snapshot()
    summary: Any = snapshot.summary if snapshot else None
    if summary is not None and int(summary["total-equality-deletes"] or 0):
        raise TableUnsupported(f"{label} has equality deletes, which upsert cannot read; compact it first")


def _check_partitions(table: Table, label: str, partition_by: Sequence[str]) -> None:
    own = tuple(_name(table.schema(), each.source_id) for each in table.spec().fields)
    if partition_by and own != tuple(partition_by):
        raise SchemaMismatch(
            f"{label} is partitioned by {', '.join(own) or 'nothing'}, but the pipeline says {', '.join(partition_by)}"
        )


def _name(schema: Schema, field: int) -> str:
    return schema.find_column_name(field) or str(field)


def _check_folder(path: str, label: str) -> None:
    try:
        LocalFolder(Path(path)).check_writable()
    except (TargetFailed, TargetRefused) as error:
        raise type(error)(f"{label}: {error}") from None


def _check_writable(table: Table, label: str) -> None:
    """Writes an empty object, and deletes it at once."""
    if (location := table.location()).startswith("file:/"):
        _check_folder("/" + location.removeprefix("file:").lstrip("/"), label)
        return
    probe = table.location_provider().new_data_location(f"danube-probe-{uuid4().hex}")
    table.io.new_output(probe).create(overwrite=True).close()
    table.io.delete(probe)
