"""Pipelines: the file that declares one, the tables it writes, and the rows that do not fit."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError


class FlowInvalid(DanubeError):
    """The declaration of a pipeline cannot be used as it is."""

    code = "flow_invalid"
    blame = "caller"
    help = "Correct it as the message says; docs/pipelines.md has every key."


class PipelineRunning(DanubeError):
    """A pipeline of that name runs already."""

    code = "pipeline_running"
    blame = "caller"
    help = "Stop it with `danube pipeline stop`, or give this one another name."


class PipelineNotFound(DanubeError):
    """No pipeline of that name has reported to the broker."""

    code = "pipeline_not_found"
    blame = "caller"
    help = "`danube pipeline list` shows those that have; names are those in their files."


class PipelineEnded(DanubeError):
    """The pipeline does not run any more, so nobody is there who could do that."""

    code = "pipeline_ended"
    blame = "caller"
    help = "Start it with `danube pipeline run`; it goes on where it was."


class PipelineLimitReached(DanubeError):
    """As many pipelines as a broker keeps track of report to it."""

    code = "pipeline_limit_reached"
    blame = "environment"
    help = "Stop pipelines that are not needed, or report to another broker."


class PipelineFailed(DanubeError):
    """The query of a pipeline ended with an error that is not Danube's own."""

    code = "pipeline_failed"
    blame = "environment"
    help = "The message has the root cause; --verbose shows Spark's whole trace."


class TableUnsupported(DanubeError):
    """The table needs what files written by a pipeline do not have."""

    code = "table_unsupported"
    blame = "caller"
    help = "Write to another table, or take the feature away; docs/pipelines.md lists what a table may have."


class SchemaMismatch(DanubeError):
    """The rows do not have the columns or types of the table."""

    code = "schema_mismatch"
    blame = "caller"
    help = "Change the query or the table; `merge_schema` adds columns that are only missing."


class RowInvalid(DanubeError):
    """A row does not fit, and the pipeline is to stop at the first."""

    code = "row_invalid"
    blame = "environment"
    help = "Set `mode: permissive` and `dead_letters`, and such rows are kept apart."


class TargetFailed(DanubeError):
    """What a pipeline writes to could not be read or written."""

    code = "target_failed"
    blame = "environment"
    retriable = True
    help = "See that it is there, and that the pipeline may write to it; what was not committed is repeated."


class TargetRefused(DanubeError):
    """What a pipeline writes to may not be written, or not so; trying again does not help."""

    code = "target_refused"
    blame = "environment"
    help = "Give the pipeline the right to write there, or write somewhere else."
