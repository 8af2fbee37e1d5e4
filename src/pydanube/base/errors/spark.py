"""Spark: options of the data source, the state of a query, and the machine that it runs on."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError


class OptionInvalid(DanubeError):
    """The data source has no such option, or the option does not allow this value."""

    blame = "caller"
    help = "Correct the option; docs/spark.md lists all of them."


class ColumnInvalid(DanubeError):
    """The schema names a column that topics do not have, or gives it another type."""

    blame = "caller"
    help = "Use the columns and types in docs/spark.md, in any order, each at most once."


class DataLost(DanubeError):
    """Messages that the query had not read yet are gone."""

    blame = "environment"
    help = (
        "To continue without them, set failOnDataLoss to false. To protect messages from retention, set the option "
        "`subscription`; nothing protects the messages of a deleted topic."
    )


class TopicReplaced(DanubeError):
    """The topic was deleted and another topic now has its name."""

    blame = "environment"
    help = "Start a new query with a new checkpoint: offsets of the old topic mean nothing in the new one."


class SubscriptionInUse(DanubeError):
    """Another running query keeps its progress under this subscription name."""

    blame = "caller"
    help = "Stop the other query, or give this one another `subscription`."


class JavaMissing(DanubeError):
    """Spark needs Java 17 or newer, which was not found."""

    blame = "environment"
    help = "Install Java (on Debian and Ubuntu: `make java`), or set JAVA_HOME to its location."
