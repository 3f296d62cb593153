"""Prompts that crash a stock server are refused on every route; other routes stay stock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.support.client import Client, Json, generate_body
from tests.integration.support.fuzz_paths import assert_answered_alike
from tests.integration.support.fuzz_spoiling import encoded

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SAMPLING = {"sampling_params": {"max_new_tokens": 2, "temperature": 0}}
EMPTY = "empty"
OUTSIDE = "out-of-vocabulary token id"


def message_of(answer: Json) -> str:
    text: str = answer["error"]["message"] if "error" in answer else answer["message"]
    return text


def refusal(client: Client, body: Json, *, stock: bool = False) -> str:
    response = client.post("/generate", body, stock=stock)
    assert response.status_code == 400
    return message_of(response.json())


@pytest.fixture(autouse=True)
def _still_answers(client: Client) -> Iterator[None]:
    yield
    assert len(client.generate([5, 6], 2)) == 2


@pytest.mark.patch("P22")
@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"text": ""}, EMPTY),
        ({"text": ["a", ""]}, EMPTY),
        ({"input_ids": []}, EMPTY),
        ({"input_ids": [[5], []]}, EMPTY),
        ({"input_ids": [-1]}, f"{OUTSIDE} -1;"),
        ({"input_ids": [8_000]}, f"{OUTSIDE} 8000; valid ids are 0 to 7999"),
        ({"input_ids": [2**40]}, f"{OUTSIDE} {2**40};"),
        ({"input_ids": [[5], [8_000]]}, f"{OUTSIDE} 8000;"),
        ({"input_ids": [2**70]}, "elements must be int"),
    ],
)
def test_generate(client: Client, prompt: Json, words: str) -> None:
    assert words in refusal(client, prompt | SAMPLING)


@pytest.mark.patch("P22")
@pytest.mark.parametrize(
    ("wanted", "refused"),
    [
        ({"sampling_params": {"max_new_tokens": 1}}, 1),
        ({"sampling_params": {"max_new_tokens": 0}, "return_logprob": True}, 1),
        ({"sampling_params": {"max_new_tokens": 1}, "top_logprobs_num": 8_001}, 1),
        (SAMPLING, 0),  # a generation is not counted either
        ({"sampling_params": {"max_new_tokens": 1, "n": 2}}, 0),
    ],
    ids=str,
)
def test_what_is_refused_is_counted_if_it_could_be_packed(
    client: Client, wanted: Json, refused: int
) -> None:
    with client.counting() as moved:
        assert client.post("/generate", {"input_ids": [8_000]} | wanted).status_code == 400
    assert moved["frontend.requests.refused"] == refused


def test_an_answer_too_large_for_memory_is_counted_once(client: Client) -> None:
    wanted: Json = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 8_000}
    body = {"input_ids": [5] * 3_000, "sampling_params": {"max_new_tokens": 0}} | wanted
    with client.counting() as moved:
        refused = client.post("/generate", body)
    assert (refused.status_code, moved["frontend.requests.refused"]) == (400, 1)
    assert "top_logprobs_num: 3000 tokens and" in message_of(refused.json())


@pytest.mark.patch("P22")
@pytest.mark.parametrize("stock", [False, True], ids=["packed", "stock"])
@pytest.mark.parametrize(
    ("wanted", "sampling", "words"),
    [
        ({"top_logprobs_num": 8_001}, {}, "top_logprobs_num: 8001 is no number up to 8000"),
        ({"top_logprobs_num": [1]}, {}, "top_logprobs_num: [1] is no number up to 8000"),
        ({"logprob_start_len": -2}, {}, "logprob_start_len: -2 is no place in the prompt"),
        ({"logprob_start_len": [0]}, {}, "logprob_start_len: [0] is no place in the prompt"),
        ({}, {"temperature": 1, "top_k": 2**31}, f"top_k: {2**31} is too large"),
    ],
    ids=str,
)
def test_numbers_that_end_a_plain_server(
    client: Client, wanted: Json, sampling: Json, words: str, stock: bool
) -> None:
    body = {"input_ids": [5, 6], "return_logprob": True, **wanted}
    body["sampling_params"] = {"max_new_tokens": 1, "temperature": 0} | sampling
    assert words in refusal(client, body, stock=stock)


@pytest.mark.patch("P22")
@pytest.mark.parametrize("stock", [False, True], ids=["packed", "stock"])
@pytest.mark.parametrize("alone", [False, True], ids=["another", "itself"])
def test_stop_tokens_that_end_a_plain_server_beside_a_request_for_several_tokens(
    client: Client, stock: bool, alone: bool
) -> None:
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    plain = client.post("/generate", {"input_ids": [5, 6], "sampling_params": sampling}).json()
    several, stops = {"min_new_tokens": 1}, {"stop_token_ids": [-1, 8_001]}
    both = [sampling | stops | (several if alone else {}), sampling | several]
    body = {"input_ids": [[5, 6], [5, 7]], "sampling_params": both}
    answers = client.post("/generate", body, stock=stock).json()
    assert answers[0]["output_ids"] == plain["output_ids"]


@pytest.mark.parametrize(("adapter", "status"), [("a", 200), (["a"], 400)], ids=str)
def test_without_adapters_an_id_does_no_harm_and_a_list_ends_a_plain_server(
    client: Client, adapter: object, status: int
) -> None:
    body = {"input_ids": [5, 6], "lora_id": adapter} | SAMPLING
    one_token = body | {"sampling_params": {"max_new_tokens": 1}}
    for asked in (body, one_token):
        assert client.post("/generate", asked).status_code == status


@pytest.mark.patch("P22")
@pytest.mark.parametrize("wanted", [[], [False]], ids=str)
def test_a_list_of_hidden_states_ends_a_plain_server(client: Client, wanted: list[bool]) -> None:
    body = {"input_ids": [5], "return_hidden_states": wanted} | SAMPLING
    assert f"return_hidden_states: {wanted} is no choice" in refusal(client, body)


@pytest.mark.patch("P22")
@pytest.mark.parametrize(
    "wrong",
    [
        *({"id": ["a"]}, {"id": {}}, {"rid": []}),
        *({"offset": "1"}, {"offset": 1.5}, {"offset": []}, {"turn": 1}),
    ],
    ids=str,
)
def test_session_parameters_that_a_plain_server_fails_on(client: Client, wrong: Json) -> None:
    opened = client.post("/open_session", {"capacity_of_str_len": 100}).json()
    body = {"input_ids": [5, 6]} | SAMPLING
    turn = client.post("/generate", body | {"session_params": {"id": opened}}).json()
    known = {"id": opened, "rid": turn["meta_info"]["id"]}
    asked = body | {"session_params": known | wrong}
    assert f"session_params.{min(wrong)}: " in refusal(client, asked)
    right = known | {"offset": 1}
    assert client.post("/generate", body | {"session_params": right}).status_code == 200
    client.post("/close_session", {"session_id": opened})


@pytest.mark.patch("P76")
@pytest.mark.parametrize("after", [{}, {"rid": "first"}], ids=["all", "those after one"])
def test_turns_whose_replacement_ends_a_plain_server(client: Client, after: Json) -> None:
    opened = client.post("/open_session", {"capacity_of_str_len": 100}).json()

    def turn(name: str, ids: list[int], **session: object) -> list[int]:
        named = {"rid": name, "session_params": {"id": opened} | session}
        answer: Json = client.post("/generate", generate_body(ids, 2) | named).json()
        output: list[int] = answer["output_ids"]
        return output

    first = [5, 6, *turn("first", [5, 6])]
    for _ in range(2):
        turn("again", [7], rid="first")
    history = first if after else []
    assert turn("new", [8, 9], replace=True, **after) == client.generate([*history, 8, 9], 2)
    client.post("/close_session", {"session_id": opened})


@pytest.mark.patch("P22")
def test_positions_that_end_a_plain_server(client: Client) -> None:
    body = {"input_ids": [5, 6, 7], "return_logprob": True, "token_ids_logprob": [5]}
    nothing, one = {"max_new_tokens": 0}, {"max_new_tokens": 1}
    for places, sampling, status in (
        ([1], nothing, 400),
        ([1], one, 200),
        ([3], one, 200),
        ([3], nothing, 400),
        ([], nothing, 400),
    ):
        asked = body | {"token_indices_to_pool": places, "sampling_params": sampling}
        for _ in range(2):  # the second time, a plain server finds the prompt in its cache
            response = client.post("/generate", asked)
            assert response.status_code == status
        assert status == 200 or "token_indices_to_pool" in message_of(response.json())


@pytest.mark.patch("P22")
def test_embeddings_of_places_are_for_programs(client: Client) -> None:
    own = {"positional_embed_overrides": {"embeds": [[0.5] * 64], "positions": [1]}}
    body = {"input_ids": [5, 6]} | own | SAMPLING
    assert "positional_embed_overrides" in refusal(client, body)


@pytest.mark.parametrize("start", [-1, 0])
def test_fewer_log_probs_than_none_are_none(client: Client, start: int) -> None:
    sampling = {"max_new_tokens": 1, "temperature": 0}
    body = {"input_ids": [5, 6], "return_logprob": True, "sampling_params": sampling}
    body |= {"top_logprobs_num": -1, "logprob_start_len": start}
    assert client.post("/generate", body).status_code == 200
    assert_answered_alike(client, "/generate", encoded(body))


def test_a_stream_ends_with_the_error(client: Client) -> None:
    response = client.post("/generate", {"input_ids": [8_000], "stream": True} | SAMPLING)
    assert f"{OUTSIDE} 8000" in response.text
    assert response.text.rstrip().endswith("[DONE]")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", EMPTY),
        ([], EMPTY),
        ([""], EMPTY),
        (["a", ""], EMPTY),
        ([8_000], f"{OUTSIDE} 8000;"),
        ([[5], [9_000]], f"{OUTSIDE} 9000;"),
    ],
)
def test_completions(client: Client, prompt: object, words: str) -> None:
    response = client.post("/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 2})
    assert response.status_code == 400
    assert words in message_of(response.json())
    good = client.post("/v1/completions", {"model": "m", "prompt": [5, 6], "max_tokens": 2})
    assert good.json()["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "m", "input": "text"}),
        ("/encode", {"text": "text"}),
        ("/classify", {"text": "text"}),
        ("/v1/rerank", {"query": "text", "documents": ["text"]}),
    ],
)
def test_routes_for_other_models_keep_their_error(client: Client, path: str, body: Json) -> None:
    with client.counting() as moved:
        response = client.post(path, body)
    assert response.status_code == 400
    assert "--is-embedding" in message_of(response.json())
    assert set(+moved) <= {"frontend.text_batches"}, "it was encoded, no more"
