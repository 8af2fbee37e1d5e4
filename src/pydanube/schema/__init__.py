"""Schemas: what definitions mean, whether one may follow another, and whether a payload fits. A core: it is given
texts and bytes, and owns no registry.
"""
