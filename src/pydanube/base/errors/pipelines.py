"""Pipelines: their files, the tables that they write, and rows that do not fit."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError, ExitCode


class FlowInvalid(DanubeError):
    """The declaration of the pipeline is not valid."""

    blame = "caller"
    exit_code = ExitCode.USAGE
    help = "Correct the declaration; docs/pipelines.md describes every key."


class ConnectorMissing(DanubeError):
    """No connector is installed for this kind of source or sink, or the one that is installed cannot be loaded."""

    blame = "environment"
    help = "Install the package that provides it, on the machine of the driver and on those of all workers."


class ConnectorConflict(DanubeError):
    """Two installed packages have a connector for the same kind of source or sink."""

    blame = "environment"
    help = "Uninstall one of the two packages."


class PipelineRunning(DanubeError):
    """A pipeline with this name is already running."""

    blame = "caller"
    http_status = 409
    help = "Stop it with `danube pipeline stop`, or give this one another name."


class PipelineNotFound(DanubeError):
    """No pipeline with this name has reported to the broker."""

    blame = "caller"
    http_status = 404
    exit_code = ExitCode.NOT_FOUND
    help = "Run `danube pipeline list` to see the names; a pipeline's name is the one in its file."


class PipelineEnded(DanubeError):
    """The pipeline is no longer running."""

    blame = "caller"
    http_status = 409
    help = "Start it with `danube pipeline run`; it continues where it stopped."


class PipelineLimitReached(DanubeError):
    """The broker already tracks as many pipelines as it can."""

    blame = "environment"
    help = "Stop pipelines that you no longer need, or report to another broker."


class PipelineFailed(DanubeError):
    """The query of a pipeline failed with an error outside Danube."""

    blame = "environment"
    help = "See the root cause in the message; --verbose shows the full Spark trace."


class RedriveOvertaken(DanubeError):
    """Another redrive of the same pipeline started later and has taken over."""

    blame = "caller"
    http_status = 409
    help = "Wait for the later one to finish. If it was stopped too, run `danube pipeline redrive` again."


class TableUnsupported(DanubeError):
    """The table uses a feature that pipelines cannot write."""

    blame = "caller"
    help = "Write to another table, or remove the feature; docs/pipelines.md lists what is supported."


class SchemaMismatch(DanubeError):
    """The columns or types of the rows do not match the table."""

    blame = "caller"
    help = "Change the query or the table; `merge_schema` adds missing columns."


class RowInvalid(DanubeError):
    """A row does not fit the table, and the pipeline is set to stop at the first such row."""

    blame = "environment"
    help = "Set `mode: permissive` and `dead_letters` to keep such rows apart."


class TargetFailed(DanubeError):
    """The target of a pipeline could not be read or written."""

    blame = "environment"
    retriable = True
    help = "Check that the target exists and that the pipeline may write to it; uncommitted work is repeated."


class TargetRefused(DanubeError):
    """The target of a pipeline does not allow this write. Trying again does not help."""

    blame = "environment"
    help = "Give the pipeline permission to write there, or write somewhere else."
