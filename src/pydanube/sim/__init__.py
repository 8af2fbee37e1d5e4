"""The deterministic simulator: virtual time, faulty disks and networks, seeded; it runs the product code unchanged.

It sees everything; nothing else in the package may import it except `testing`.
"""
