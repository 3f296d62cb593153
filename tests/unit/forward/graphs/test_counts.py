from __future__ import annotations

import json
from collections import Counter

from sglang_prefill_ext.forward.graphs.plan import GraphUse


def test_the_report_is_json() -> None:
    use = GraphUse((16, 24), bytes=5, forwards=Counter({"graph": 2, "adapter": 1}))
    assert json.loads(json.dumps(use.as_dict())) == {
        "sizes": [16, 24],
        "obstacle": "",
        "bytes": 5,
        "seconds": 0.0,
        "forwards": {"graph": 2, "adapter": 1},
    }
