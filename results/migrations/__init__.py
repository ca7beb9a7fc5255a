"""Alembic migrations of the results database, driven from Python (no alembic.ini).

`REVISIONS` is listed here so that opening an up-to-date database needs no Alembic; a test compares it with the files.
"""

#: Every revision, oldest first.
REVISIONS = ("0001",)

#: The revision of `results/schema.py`.
HEAD = REVISIONS[-1]
