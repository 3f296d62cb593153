import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from sglang_prefill_ext.modelmaker import PRESETS, catalogue
from sglang_prefill_ext.modelmaker.multimodal import MULTIMODAL
from sglang_prefill_ext.modelmaker.tokenizer import (
    IMAGE_TOKENS,
    TURN_END,
    label_ids,
    rendered,
    train_tokenizer,
)

VOCABULARY = 8_000
_tokenizer = train_tokenizer(VOCABULARY, 1024)
_reranker = train_tokenizer(VOCABULARY, 1024, reranker=True)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return _tokenizer


def test_exactly_the_vocabulary_asked_for(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.vocab_size == len(tokenizer) == VOCABULARY
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCABULARY))


@pytest.mark.parametrize("vocabulary", [1_000, 20_000])
def test_other_sizes(vocabulary: int) -> None:
    assert len(train_tokenizer(vocabulary, 1024)) == vocabulary


def test_training_is_deterministic(tokenizer: PreTrainedTokenizerFast) -> None:
    again = train_tokenizer(VOCABULARY, 1024)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_image_tokens_have_the_ids_of_the_configurations() -> None:
    tokenizer = train_tokenizer(VOCABULARY, 1024, images=True)
    assert len(tokenizer) == VOCABULARY
    start, end, image, video = tokenizer.convert_tokens_to_ids([*IMAGE_TOKENS.values()])
    for name, model in MULTIMODAL.items():
        shape = model.shape.get("thinker_config", model.shape)
        if name.startswith(("qwen", "glm")):
            around = "vision" if name.startswith("qwen") else "image"
            names = (f"{around}_start", f"{around}_end", "image", "video")
            ids = [shape[f"{each}_token_id"] for each in names]
            assert ids == [start, end, image, video]
        elif name.startswith("gemma4"):
            names = ("boi", "eoi", "image", "video")
            assert [shape[f"{each}_token_id"] for each in names] == [start, end, image, video]
        else:
            (found,) = {"image_token_index", "image_token_id"} & shape.keys()
            assert shape[found] == image


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert _tokenizer.decode(_tokenizer.encode(text)) == text


def test_adds_no_token_of_its_own(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.is_fast
    assert tokenizer.encode("") == []
    assert tokenizer.bos_token is None


def test_labels_are_distinct_single_tokens_of_the_base_vocabulary(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    yes, no = label_ids(tokenizer)
    assert tokenizer.decode([yes]) == catalogue.YES_LABEL
    assert tokenizer.decode([no]) == catalogue.NO_LABEL
    assert max(yes, no) < tokenizer.vocab_size


def test_a_prompt_is_its_parts(tokenizer: PreTrainedTokenizerFast) -> None:
    """No token spans query and item, so all rows of a query share the whole query part."""
    for query, item in zip(catalogue.queries("test"), catalogue.items(), strict=False):
        front, back = catalogue.query_part(query.text), catalogue.item_part(item.text)
        prompt = tokenizer.encode(front + back + catalogue.YES_LABEL)
        assert prompt[:-1] == tokenizer.encode(front) + tokenizer.encode(back)
        assert prompt[-1] == label_ids(tokenizer)[0]


def test_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.eos_token == TURN_END


def test_a_reranker_answers_with_one_token() -> None:
    assert _reranker.vocab_size == len(_reranker) == VOCABULARY
    yes, no = (_reranker.encode(answer) for answer in ("yes", "no"))
    assert len(yes) == len(no) == 1
    assert yes != no
    assert _reranker.convert_tokens_to_ids(["yes", "no"]) == [*yes, *no]
    assert _reranker.decode(_reranker.encode("yesterday, not")) == "yesterday, not"


def test_chat_template_of_a_reranker() -> None:
    messages = [{"role": "user", "content": text} for text in ("a query", "a document")]
    prompt = _reranker.apply_chat_template(messages, tokenize=False, instruct="Be strict.")
    assert 'answer can only be "yes" or "no"' in prompt
    assert prompt.endswith(
        "<|im_start|>user\nInstruction: Be strict.\nQuery: a query\n"
        "Document: a document<|im_end|>\n<|im_start|>assistant\n"
    )
    default = _reranker.apply_chat_template(messages, tokenize=False)
    assert "Instruction: Find documents that answer the query.\n" in default


def test_chat_template_of_a_reranker_that_reads_images() -> None:
    tokenizer = train_tokenizer(VOCABULARY, 1024, reranker=True, images=True)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "unread"}],
        tokenize=False,
        query=[{"type": "text", "text": "a query"}, {"type": "image"}],
        document=[{"type": "text", "text": "a document"}],
    )
    assert prompt.endswith(
        "Query: a query<|vision_start|><|image_pad|><|vision_end|>\n"
        "Document: a document<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(tokenizer).count("a lamp") == 2


def test_only_rerankers_have_such_a_tokenizer() -> None:
    rerankers = [name for name, preset in PRESETS.items() if preset.reranker]
    assert rerankers == ["reranker", "reranker-qwen3-vl"]
