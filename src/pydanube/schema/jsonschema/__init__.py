"""Schemas in JSON Schema, drafts 2020-12 and 07: read and bounded, compared place by place, and checked against
payloads by the library jsonschema-rs.
"""
