"""The files between the stages: one module per kind of record."""
