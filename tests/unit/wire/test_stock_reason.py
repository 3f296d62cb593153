from __future__ import annotations

import json
import pickle
from copy import deepcopy

import msgspec

from sglang_prefill_ext.wire.stock_reason import StockReason


def test_a_reason_travels_as_its_word() -> None:
    for reason in StockReason:
        assert str(reason) == f"{reason}" == reason.name.lower()
        assert json.loads(json.dumps(reason)) == msgspec.json.decode(msgspec.json.encode(reason))
        assert StockReason(str(reason)) is reason
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(reason), type=StockReason) is reason
        assert pickle.loads(pickle.dumps(reason)) is deepcopy(reason) is reason
