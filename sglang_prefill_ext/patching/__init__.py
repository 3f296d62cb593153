"""What is changed and used of SGLang: the tables, their guard, applying them, and `doctor`.

`table` is the only list of changes and `uses` that of what hooks use as it is, `guard` compares
both with the installed release, `border.patches` alone changes anything, and `doctor` shows the
tables to people. `tools.lock` generates the uses: `scan` reads our source, and `tools.handed` says
by hand what that does not show.
"""
