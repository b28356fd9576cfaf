"""Registers the format `bourn` with Spark, which looks for modules that are named so.

Spark asks such a module for a `DefaultSource` whenever a format is used that it does not know.
"""

from bourn.spark.datasource import BournDataSource as DefaultSource

__all__ = ["DefaultSource"]
