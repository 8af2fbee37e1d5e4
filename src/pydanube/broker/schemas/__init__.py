"""The schema registry: which subjects exist, their versions, and who may follow whom."""
