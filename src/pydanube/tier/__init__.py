"""The cold tier: rows of batches as Parquet segments in object storage, and the processes that do this heavy work.

It needs `pyarrow` and `numpy`, so other folders import it only when it is used. `direct.py` does the work in this
process, `process.py` in others; both implement the port `Segments`.
"""
