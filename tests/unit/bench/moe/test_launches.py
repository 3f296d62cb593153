from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.moe.launches import QWEN3, _computing, _launched, launch_table, work_table
from sglang_prefill_ext.moe.blocks import Entry

DOCS = Path(__file__).parents[4] / "docs" / "moe.md"


def test_the_page_has_both_tables() -> None:
    begin, end = (
        f"<!-- {which} of what bench.moe.launches prints -->\n" for which in ("begin", "end")
    )
    _, _, rest = DOCS.read_text().partition(begin)
    printed, _, _ = rest.partition(end)
    assert printed.strip() == f"{launch_table()}\n{work_table()}".strip(), (
        "put what `python -m bench.moe.launches` prints into docs/moe.md"
    )


def test_programs_of_a_block() -> None:
    entry = Entry(2048, 128)
    # Six programs side by side for 1,536 columns, eight for 2,048, in tiles of 256.
    assert _computing(entry, np.array([1, 128, 129])) == 14 * 4
    assert _launched(entry, 2304 * QWEN3.top_k) == 14 * 272  # 18,432 rows and 129 * 127 more
