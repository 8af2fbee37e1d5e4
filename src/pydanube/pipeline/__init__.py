"""Pipelines: declared flows from a source through SQL and Python to tables and topics, run by Spark.

Needs `pip install pydanube[pipeline]` and Java.
"""
