"""Spark's side: options of the data source, what a query stands on, and the machine it runs on."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError


class OptionInvalid(DanubeError):
    """The data source has no such option, or the option has no such value."""

    code = "option_invalid"
    blame = "caller"
    help = "Correct it as the message says; docs/spark.md has all options."


class ColumnInvalid(DanubeError):
    """The schema names a column that a topic does not have, or gives it another type."""

    code = "column_invalid"
    blame = "caller"
    help = "Name columns of docs/spark.md with their types, in any order, each once."


class DataLost(DanubeError):
    """Messages that the query had still to read are gone."""

    code = "data_lost"
    blame = "environment"
    help = (
        "To go on without them, set failOnDataLoss to false. The option `subscription` holds them against retention; "
        "nothing holds a topic that is deleted."
    )


class TopicReplaced(DanubeError):
    """The topic was deleted, and another one has its name now."""

    code = "topic_replaced"
    blame = "environment"
    help = "Start a new query with a new checkpoint: offsets of the old topic mean nothing in the new one."


class SubscriptionInUse(DanubeError):
    """Another query that runs now keeps its progress under this name."""

    code = "subscription_in_use"
    blame = "caller"
    help = "Stop the other query, or give this one another `subscription`."


class JavaMissing(DanubeError):
    """Spark needs Java 17 or newer, and none was found."""

    code = "java_missing"
    blame = "environment"
    help = "Install it, on Debian and Ubuntu with `make java`, or set JAVA_HOME to where it is."
