"""Measures the cores on this machine: batch, journal, engines, cursors. Run by `make bench-core`."""

from __future__ import annotations

from importlib import import_module

from figures import Figures

PARTS = ("batch", "journal", "dispatch", "cursors", "topics")  # modules with `main(figures)`


def main() -> None:
    figures = Figures()
    for part in PARTS:
        import_module(part).main(figures)
    figures.table()


if __name__ == "__main__":
    main()
