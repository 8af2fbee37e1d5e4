"""The cold tier: rows of batches as Parquet segments in object storage, and the processes that do this heavy work.

Needs `pyarrow` and `numpy`, so whoever uses it imports it when it is asked for. `direct.py` does the work in this
process, `process.py` in others; both are the port `Segments`.
"""
