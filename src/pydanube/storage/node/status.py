"""Translates the node's own record of a ledger into the status that the port returns."""

from __future__ import annotations

from pydanube.base.durability import Durability
from pydanube.base.limits import OFFSET_MAX, RESERVE_OFFSETS
from pydanube.journal.ledger_table import BUFFERED, FENCED, FSYNC, OPEN, SEALED, Ledger
from pydanube.ports.storage import LedgerState, LedgerStatus

DURABILITY_CODES = {Durability.FSYNC: FSYNC, Durability.BUFFERED: BUFFERED}
_DURABILITIES = {code: durability for durability, code in DURABILITY_CODES.items()}
_STATES = {OPEN: LedgerState.OPEN, FENCED: LedgerState.FENCED, SEALED: LedgerState.SEALED}


def status_of(ledger: Ledger, newest_bytes: int, unknown: int = 0) -> LedgerStatus:
    """The status. `newest_bytes` counts what is not in a closed file yet; `unknown` is that of the ledger table."""
    return LedgerStatus(
        ledger=ledger.id,
        epoch=max(ledger.epoch, ledger.fence),
        state=_STATES[ledger.state],
        durability=_DURABILITIES[ledger.durability],
        last=ledger.sealed if ledger.state == SEALED else ledger.held,
        confirmed=ledger.confirmed,
        reserved=ledger.reserved,
        damaged=ledger.incomplete,
        quarantined=ledger.quarantined,
        bytes=newest_bytes + sum(size for _, size in ledger.files()),
        lost_through=ledger.lost_through,
        unknown=max(unknown, RESERVE_OFFSETS) if ledger.lost_through == OFFSET_MAX else 0,
    )
