"""Errors by their codes."""

from __future__ import annotations

from pydanube.base.errors import DanubeError, LedgerFenced, error_kind


def test_an_error_is_found_by_its_code_even_if_it_was_defined_later() -> None:
    assert error_kind("ledger_fenced") is LedgerFenced
    assert error_kind("defined_later_by_a_test") is None

    class Later(DanubeError):
        """Only for this test."""

        code = "defined_later_by_a_test"
        help = "Nothing to do."

    assert error_kind("defined_later_by_a_test") is Later
