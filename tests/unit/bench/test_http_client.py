from __future__ import annotations

import asyncio
import json

import pytest

from bench.http_client import Connection, LoadError, StreamConnection, connect, post_bytes
from bench.workloads import generate_body
from tests.unit.bench.stand_in import StandIn

BODY = {"query": [1, 2], "items": [[3], [4]], "return_token_logprobs": False}
REQUEST = post_bytes("/v1/score", json.dumps(BODY).encode())


async def exchange(stand_in: StandIn, times: int) -> list[bytes]:
    connection = await connect(stand_in.port, Connection)
    try:
        return [await connection.send(REQUEST) for _ in range(times)]
    finally:
        connection.close()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
async def test_answers_are_whole_however_they_arrive(stand_in: StandIn, chunk_bytes: int) -> None:
    stand_in.chunk_bytes = chunk_bytes
    answers = await exchange(stand_in, 3)
    assert [json.loads(answer)["scores"] for answer in answers] == [
        [[6 / 997, 1 - 6 / 997], [7 / 997, 1 - 7 / 997]]
    ] * 3
    assert stand_in.seen == [BODY] * 3


async def test_an_error_status_is_raised_with_its_body(stand_in: StandIn) -> None:
    stand_in.status = 500
    with pytest.raises(LoadError, match=r"HTTP/1\.1 500 Some Reason: .*scores"):
        await exchange(stand_in, 1)


async def test_an_answer_without_a_length_is_refused(stand_in: StandIn) -> None:
    stand_in.keep_length = False
    with pytest.raises(LoadError, match="content-length"):
        await exchange(stand_in, 1)


async def test_a_server_that_hangs_up_is_an_error_at_once_and_later() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        connection = await connect(server.sockets[0].getsockname()[1], Connection)
        for _ in range(2):
            with pytest.raises(LoadError, match="closed the connection"):
                await connection.send(REQUEST)


GENERATE = post_bytes("/generate", generate_body([5, 6], 3))


async def streamed(stand_in: StandIn, times: int) -> list[bytes]:
    connection = await connect(stand_in.port, StreamConnection)
    try:
        answers = [await connection.stream(GENERATE) for _ in range(times)]
    finally:
        connection.close()
    for pieces in answers:
        assert [second for second, _ in pieces] == sorted(second for second, _ in pieces)
    return [b"".join(data for _, data in pieces) for pieces in answers]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
async def test_a_stream_ends_with_its_last_chunk(stand_in: StandIn, chunk_bytes: int) -> None:
    stand_in.chunk_bytes = chunk_bytes
    answers = await streamed(stand_in, 2)
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"output_ids") == 3
        assert answer.endswith(b"0\r\n\r\n")


async def test_a_stream_with_an_error_status_is_raised(stand_in: StandIn) -> None:
    stand_in.status = 503
    with pytest.raises(LoadError, match=r"HTTP/1\.1 503"):
        await streamed(stand_in, 1)
