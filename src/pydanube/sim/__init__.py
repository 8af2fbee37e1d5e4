"""The deterministic simulator: it runs the product's code unchanged, in virtual time, on faulty disks and networks.

It may import everything; nothing in the package may import it except `testing`.
"""
