"""Schemas in Avro: parsed into types, compared by the rules of resolution, and checked against payloads."""
