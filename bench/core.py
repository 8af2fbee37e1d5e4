"""Measures the foundation on this machine: the batch first, then the journal under it. Run by `make bench-core`."""

from __future__ import annotations

from importlib import import_module

from figures import Figures

PARTS = ("batch", "journal")  # modules of this folder with `main(figures)`, in the order they run


def main() -> None:
    figures = Figures()
    for part in PARTS:
        import_module(part).main(figures)
    figures.table()


if __name__ == "__main__":
    main()
