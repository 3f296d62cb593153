from __future__ import annotations

import subprocess
import sys

from sglang_prefill_ext.frontend.exchange import unique_name

_PRINT = (
    "from sglang_prefill_ext.frontend.exchange import unique_name as n; print(n('a-'), n('a-'))"
)


def test_no_name_is_given_twice_in_any_process() -> None:
    found = [unique_name("a-"), unique_name("a-")]
    for _ in range(2):
        found += subprocess.check_output([sys.executable, "-c", _PRINT], text=True).split()
    assert len(set(found)) == len(found) == 6
    assert all(name.startswith("a-") for name in found)


def test_no_name_begins_with_another() -> None:
    found = [unique_name("a-") for _ in range(120)]
    assert [name for name in found if any(o.startswith(name) for o in found if o != name)] == []
