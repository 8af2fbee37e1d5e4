"""How to read a table with other programs: a few lines to paste for each. Capital letters stand for credentials."""

from __future__ import annotations

_DUCKDB_SECRETS = {
    "s3": "CREATE SECRET (TYPE s3, PROVIDER credential_chain);",
    "gs": "CREATE SECRET (TYPE gcs, KEY_ID 'KEY', SECRET 'SECRET');",
    "az": "CREATE SECRET (TYPE azure, PROVIDER credential_chain, ACCOUNT_NAME 'ACCOUNT');",
}


def snippets(uri: str) -> dict[str, str]:
    """The lines for each program."""
    scheme, _, rest = uri.partition("://")
    secret = _DUCKDB_SECRETS.get(scheme)
    return {
        "DuckDB": "\n".join(
            ["INSTALL delta; LOAD delta;", *([secret] if secret else []), f"FROM delta_scan('{uri}') LIMIT 10;"]
        ),
        "Polars": f"import polars\nprint(polars.scan_delta({uri!r}).head(10).collect())",
        "Spark": f'spark.read.format("delta").load("{_of_spark(scheme, rest)}").show(10)',
    }


def _of_spark(scheme: str, rest: str) -> str:
    """The URI with the schemes of Hadoop."""
    if scheme == "s3":
        return f"s3a://{rest}"
    if scheme == "az":
        container, _, path = rest.partition("/")
        return f"abfss://{container}@ACCOUNT.dfs.core.windows.net/{path}"
    return f"{scheme}://{rest}"
