"""Schemas in Protobuf: `.proto` files read without a compiler, compared by the rules of the encoding, and checked
against payloads by the library protobuf.
"""
