"""The public testing kit: what somebody who builds on Danube, or adds a part to it, needs for tests of their own.

`storage_contract` is what every kind of storage node must do. Nothing here needs more than the standard library.
"""
