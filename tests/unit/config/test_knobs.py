from __future__ import annotations

from sglang_prefill_ext.config.knobs import flag_name


def test_flag_names() -> None:
    assert flag_name("max_items") == "--prefill-only-max-items"
