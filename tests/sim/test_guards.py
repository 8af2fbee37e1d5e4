"""The simulator can find the bugs it is there for: each guard is turned off on purpose, and that must not pass."""

from __future__ import annotations

import pytest

from pydanube.base.errors import DanubeError
from pydanube.ledger import table
from pydanube.ledger.catalog import Copies
from pydanube.ledger.table import Ledger
from pydanube.ports.disk import Disk
from pydanube.sim.run import Outcome, run_seed
from pydanube.storage import recovery, writer
from pydanube.storage.journal import ActiveFile, Journal, Pending
from pydanube.storage.keeper import Keeper

SEEDS = 200
LOST = {"I1", "I2"}  # acknowledged and gone, or another payload at the same offset


def first_violation(profile: str) -> Outcome:
    """The first of 200 seeds that breaks a promise about data."""
    for seed in range(SEEDS):
        outcome = run_seed(seed, profile)
        if LOST & {violation.promise for violation in outcome.violations}:
            return outcome
    pytest.fail(f"{SEEDS} seeds of profile {profile} found nothing")


def test_acknowledging_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Journal, group: Pending) -> bool:
        return False

    monkeypatch.setattr(Journal, "_must_sync", never)
    first_violation("power")


def test_a_writer_that_nobody_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybody(self: Ledger, epoch: int) -> bool:
        return self.state != table.SEALED

    monkeypatch.setattr(Ledger, "admits", anybody)
    first_violation("owners")


def test_removing_a_file_before_its_copy_is_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Keeper, disk: Disk, active: ActiveFile) -> None:
        await disk.rename(active.file.name + ".tmp", active.file.name)

    monkeypatch.setattr(Keeper, "_seal_copy", hasty)
    first_violation("power")


def test_acknowledging_below_the_ack_quorum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_is_enough(acks: int, copies: Copies) -> bool:
        return acks >= 1

    monkeypatch.setattr(writer, "acknowledged", one_is_enough)
    first_violation("wipe")


def test_taking_silence_for_absence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery does not wait any more: a node that is down, deaf, damaged or wiped counts as one that has nothing."""

    def always(error: DanubeError, *, fenced: bool) -> bool:
        return True

    def any_will_do(nodes: object, fenced: object, copies: Copies) -> bool:
        return True

    monkeypatch.setattr(recovery, "counts_as_absence", always)
    monkeypatch.setattr(recovery, "fenced_enough", any_will_do)
    first_violation("power")
