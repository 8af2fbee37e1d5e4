"""Identifiers. All are plain values, so that they cost nothing and serialise as themselves."""

from __future__ import annotations

from typing import NewType

LedgerId = NewType("LedgerId", int)  # assigned by the catalogue, never reused
Epoch = NewType("Epoch", int)  # of a ledger; only the newest may write
NodeIdentity = NewType("NodeIdentity", str)  # 32 hex digits, durable; a wiped node gets a new one
ConsumerId = NewType("ConsumerId", int)  # of one connected consumer of one subscription, never reused

NO_OFFSET = -1  # "before the first": last offset of an empty ledger, last confirmed before anything is
