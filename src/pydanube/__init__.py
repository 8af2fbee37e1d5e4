"""Danube: distributed publish/subscribe and streaming, with a data pipeline that runs on Spark."""

__version__ = "0.1.0.dev0"
