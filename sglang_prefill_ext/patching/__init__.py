"""The tables of what we change and use of SGLang, their checks, and `doctor`.

`table` lists every change, and everything that hooks use unchanged. `guard` compares both with the
installed SGLang, and `doctor` shows them to people. Only `border.patches` applies changes. In a
checkout, `patches.tools.lock` generates the uses: `scan` reads our source, and
`patches.tools.handed` lists by hand what the source does not show.
"""
