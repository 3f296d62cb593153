"""A router and the tokenizers of its engines, each of which is a text of many MB."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sglang_prefill_ext.attach.http_connections import Answer
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.replica import Replica
from tests.unit.attach.engines import facts
from tests.unit.fleet.stub_engines import Stub, an_offer, served


async def test_engines_share_their_tokenizer() -> None:
    offers = []
    for stub in (Stub(), Stub()):
        async with served(stub.app()) as url:
            replica = Replica(url)
            await replica.state()
            replica.connections.close()
        assert replica.offer == stub.offer
        offers.append(replica.offer)
    assert offers[0].facts.tokenizer is offers[1].facts.tokenizer


async def test_an_engine_with_other_weights_does_not_send_its_tokenizer_again() -> None:
    stub = Stub()
    async with served(stub.app()) as url:
        replica = Replica(url)
        await replica.state()
        stub.offer = replace(stub.offer, settings={"weight version": "2"})
        state = await replica.state()
        assert state.offer is not None
        assert state.offer.facts.tokenizer == ""
        assert replica.offer == stub.offer
        assert (await replica.state()).offer is None
        replica.connections.close()


async def test_an_engine_with_another_tokenizer_sends_it() -> None:
    stub = Stub()
    async with served(stub.app()) as url:
        replica = Replica(url)
        for tokenizer in ("another", "", facts().tokenizer):
            stub.offer = an_offer(facts=facts(tokenizer=tokenizer))
            await replica.state()
            assert replica.offer == stub.offer
        replica.connections.close()


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "--api-key"), (403, "--api-key"), (404, "--enable-prefill-only")]
)
async def test_a_refusal_says_what_to_do(
    status: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_args: object) -> Answer:
        return Answer(b"HTTP/1.1 %d No" % status, b"told")

    replica = Replica("http://a")
    monkeypatch.setattr(replica.connections, "get", refused)
    with pytest.raises(EngineUnavailableError, match=rf"HTTP {status} \(told\).*{remedy}"):
        await replica.state()
