"""What is changed in SGLang: one table, its guard, applying it, and `doctor`.

`table` is the only list of changes, `guard` compares it with the installed release, `engine` is
the only code that changes anything, `doctor` and `docs` show the table to people.
"""
