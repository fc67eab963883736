"""The trajectory database: the only part of kpipe that speaks SQL.

Every operation is a plain function of a connection; `Database` runs it in a transaction of its own, on a
thread, for callers with or without an event loop: ``db.read(runs.get, "first")``, ``await db.awrite(...)``.
"""
