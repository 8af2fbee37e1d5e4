"""Schemas: their definitions, their subjects, and what may become of them."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError, ExitCode, GrpcStatus


class SchemaInvalid(DanubeError):
    """The definition of the schema is not valid for its type, or uses something that this registry refuses."""

    blame = "caller"
    http_status = 422
    grpc_status = GrpcStatus.INTERNAL  # what public clients expect of a registration
    exit_code = ExitCode.USAGE
    kafka_code = 42201
    help = "Correct the definition at the place that the message names."


class SchemaTooComplex(DanubeError):
    """The definition is larger, deeper or more entangled than the registry allows."""

    blame = "caller"
    http_status = 422
    grpc_status = GrpcStatus.INTERNAL
    kafka_code = 42201
    help = "Simplify the definition, or divide it into several subjects that refer to each other."


class SchemaIncompatible(DanubeError):
    """The definition is not compatible with versions that the subject already has."""

    blame = "caller"
    http_status = 409
    grpc_status = GrpcStatus.INTERNAL
    help = "Change the definition at the places that the message names, or register it under another subject."


class SubjectNotFound(DanubeError):
    """The registry has no subject with this name."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND
    kafka_code = 40401
    help = "Register a schema under this subject first, or correct its name."


class SchemaNotFound(DanubeError):
    """The registry has no schema with this id or version, or it was deleted."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND
    kafka_code = 40403
    help = "List the versions of the subject, and use one of them."


class SchemaInUse(DanubeError):
    """Other schemas refer to this version, so it cannot be deleted."""

    blame = "caller"
    http_status = 422
    kafka_code = 42206
    help = "Delete the versions that refer to it first."


class SchemaModeInvalid(DanubeError):
    """The text does not name a compatibility mode."""

    blame = "caller"
    http_status = 422
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    exit_code = ExitCode.USAGE
    kafka_code = 42203
    help = "Use none, backward, forward, full, or one of the last three followed by _transitive."


class SchemaCheckFailed(DanubeError):
    """The compatibility of a subject cannot be checked or set, because the subject does not exist."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.INTERNAL  # what public clients expect, unlike when a schema is looked up
    exit_code = ExitCode.NOT_FOUND
    help = "Register a schema under this subject first, or correct its name."


class SubjectInvalid(DanubeError):
    """The name is not valid for a subject."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    exit_code = ExitCode.USAGE
    help = "Use 1 to 255 bytes without control characters."
