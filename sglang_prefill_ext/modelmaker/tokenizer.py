"""Byte-level BPE tokenizers, trained on the spot."""

from functools import cache
from itertools import chain, repeat

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from sglang_prefill_ext.modelmaker import corpus
from sglang_prefill_ext.modelmaker.catalogue import NO_LABEL, YES_LABEL

PAD_TOKEN = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
IMAGE_TOKENS = {
    "boi_token": "<|vision_start|>",
    "eoi_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
"""Gemma's names of Qwen's tokens; their ids are 3 to 6."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{TURN_START}{{{{ message.role }}}}\n{{{{ message.content }}}}{TURN_END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{TURN_START}assistant\n{{% endif %}}"
)


def _reranker_template(query: str, document: str) -> str:
    return (
        f"{TURN_START}system\n"
        "Judge whether the document answers the query in the way that the instruction asks for. "
        f'The answer can only be "yes" or "no".{TURN_END}\n'
        f"{TURN_START}user\n"
        'Instruction: {{ instruct | default("Find documents that answer the query.") }}\n'
        f"Query: {query}\n"
        f"Document: {document}{TURN_END}\n"
        f"{TURN_START}assistant{{{{ '\\n' }}}}"
    )


def _parts(name: str) -> str:
    """Render a list of texts and images."""
    begin, end, image, _ = IMAGE_TOKENS.values()
    return (
        f"{{% for part in {name} %}}"
        f"{{% if part.type == 'image' %}}{begin}{image}{end}{{% else %}}{{{{ part.text }}}}"
        "{% endif %}{% endfor %}{{ '' }}"  # after a block, Transformers drops a newline
    )


RERANKER_TEMPLATE = _reranker_template("{{ messages[0].content }}", "{{ messages[1].content }}")
"""SGLang knows a reranker by the sentence about the answer. Jinja drops a newline at the end."""

IMAGE_RERANKER_TEMPLATE = _reranker_template(_parts("query"), _parts("document"))
"""SGLang knows that the reranker reads images by the tokens that stand for one."""

ANSWERS = ["yes", "no"]
_ANSWER_LINES = 1_000
"""How often each is in the training text: enough for a token of its own."""


def train_tokenizer(
    vocabulary: int,
    context_length: int,
    *,
    reranker: bool = False,
    token_types: int = 0,
    images: bool = False,
) -> PreTrainedTokenizerFast:
    """A fast tokenizer of exactly `vocabulary` tokens, the same on every call.

    All 256 bytes are in its alphabet, so any Unicode string comes back unchanged from
    `decode(encode(text))`. It adds no token of its own to a text. The labels of the
    catalogue are single tokens. The special tokens (Qwen's names) are the first ids and part
    of the base vocabulary, so `tokenizer.vocab_size == len(tokenizer) == vocabulary`.

    Args:
        vocabulary: number of tokens, specials included; the corpus yields up to about 20,000.
        context_length: tokens that the model accepts; only recorded.
        reranker: the chat template is `RERANKER_TEMPLATE` (with `images` the other one), and "yes"
            and "no", with which an answer begins, are single tokens.
        token_types: of an encoder, for which a text is put between two special tokens, and the
            second one of a pair, which has the last type, in front of another; there is no chat
            template. 0: not for an encoder.
        images: it has `IMAGE_TOKENS`, too.
    """
    more = IMAGE_TOKENS if images else {}
    bpe = Tokenizer.from_str(_trained(vocabulary, tuple(more.values()), reranker))
    if token_types:
        second = token_types - 1
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{TURN_START} $A {TURN_END}",
            pair=f"{TURN_START} $A {TURN_END} $B:{second} {TURN_END}:{second}",
            special_tokens=[(token, bpe.token_to_id(token)) for token in (TURN_START, TURN_END)],
        )
    template = CHAT_TEMPLATE
    if reranker:
        template = IMAGE_RERANKER_TEMPLATE if images else RERANKER_TEMPLATE
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD_TOKEN,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START, *more.values()],
        extra_special_tokens=more,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        chat_template=None if token_types else template,
    )
    assert len(tokenizer) == vocabulary, f"the corpus yields only {len(tokenizer)} tokens"
    if not token_types:
        label_ids(tokenizer)
    return tokenizer


@cache  # a process may make many models, nearly all with the same tokens
def _trained(vocabulary: int, more: tuple[str, ...], reranker: bool) -> str:
    """The tokens and their merges, as JSON."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=vocabulary,
        special_tokens=[PAD_TOKEN, TURN_START, TURN_END, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    answers = chain.from_iterable(repeat(ANSWERS, _ANSWER_LINES if reranker else 0))
    bpe.train_from_iterator(chain(corpus.lines(), answers), trainer)
    return bpe.to_str()


def rendered(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a prompt that `IMAGE_RERANKER_TEMPLATE` makes."""
    part = {"type": "text", "text": "a lamp"}
    unread = [{"role": "user", "content": ""}]  # Transformers wants a conversation
    text: str = tokenizer.apply_chat_template(unread, tokenize=False, query=[part], document=[part])
    return text


def label_ids(tokenizer: PreTrainedTokenizerFast) -> tuple[int, int]:
    """The token ids of `YES_LABEL` and `NO_LABEL`, in this order."""
    (yes,) = tokenizer.encode(YES_LABEL)
    (no,) = tokenizer.encode(NO_LABEL)
    return yes, no
