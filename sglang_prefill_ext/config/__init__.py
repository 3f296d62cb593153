"""The one configuration of the extension; command line, `Engine(...)` and children share it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from sglang_prefill_ext.config.knobs import KNOB_PREFIX, checked, flag_name, new_knob
from sglang_prefill_ext.errors import ConfigError

ENABLE_FIELD = "enable_prefill_only"


class Order(StrEnum):
    """The order in which waiting requests are served."""

    SRPT = "srpt"  # fewest tokens left, with ageing
    FCFS = "fcfs"  # first come, first served
    PRIORITY = "priority"  # highest priority; srpt among equals. Low ones may wait for ever.
    DEADLINE = "deadline"  # earliest deadline; then those without one, by srpt


class PrefixCaching(StrEnum):
    """Which prefixes are left in SGLang's prefix cache."""

    REPEATED = "repeated"  # those seen before
    ALWAYS = "always"
    NEVER = "never"  # prefixes that other requests left are still used


class AttentionWay(StrEnum):
    """How the attention of packed forwards is computed."""

    AUTO = "auto"  # FUSED on a GPU, TORCH on a CPU
    FUSED = "fused"  # one Triton kernel over cached prefix, fresh prefix and own row
    MERGE = "merge"  # one kernel for the prefix, one for the row, joined by log-sum-exp
    MERGE_FA3 = "merge-fa3"  # the same, with FlashAttention-3 for the prefix
    MERGE_FLASHINFER = "merge-flashinfer"  # the same, with FlashInfer for the prefix
    TORCH = "torch"  # dense torch calls, on every device


class MoePolicy(StrEnum):
    """How the block of rows is chosen in which the experts of a mixture compute."""

    AUTO = "auto"  # least-time if times were measured at start, else padding-ratio
    LEAST_TIME = "least-time"  # the least predicted time over all blocks of SGLang's tuning
    PADDING_RATIO = "padding-ratio"  # 64 instead of 128 rows if padding exceeds half the real rows
    STOCK = "stock"  # SGLang's own choice, by tokens alone


class MoeSource(StrEnum):
    """The routing from which the block of rows is chosen."""

    HISTORY = "history"  # that of earlier forwards, on the host
    DEVICE = "device"  # that of the forward itself; the device chooses between two blocks


class Switch(StrEnum):
    """Whether something is done."""

    ON = "on"
    OFF = "off"


class TokenizerChoice(StrEnum):
    """The library that encodes texts; it must give the same ids as Hugging Face's."""

    AUTO = "auto"  # fastokens if it is installed and faster
    HUGGINGFACE = "huggingface"
    FASTOKENS = "fastokens"
    GIGATOKEN = "gigatoken"  # its memory grows with every new word


@dataclass(frozen=True, slots=True)
class PrefillOnlyConfig:
    """Knobs of the packed path; every field is a flag ``--prefill-only-<name>``.

    Raises:
        ConfigError: a value is out of its range.
    """

    max_forward_tokens: int = new_knob(
        16384,
        "Most tokens of one packed forward. A larger request takes several forwards that share "
        "the K/V of its prefix.",
    )
    max_items: int = new_knob(
        10000,
        "Most items of one scoring request, or prompts of one call for vectors. A larger one gets "
        "HTTP 400.",
    )
    readout_chunk_mib: int = new_knob(
        0,
        "Memory (MiB) for full-vocabulary logits. Rows are read in chunks that fit. 0 takes what "
        "the device can spare: up to 512 on CUDA, else 64.",
        least=0,
    )
    order: Order = new_knob(
        Order.SRPT,
        "Order of service: srpt (fewest tokens left first, with ageing), fcfs (first come first "
        "served), priority (highest first), or deadline (earliest first).",
    )
    ageing: int = new_knob(
        2,
        "How far small requests may overtake, in tokens processed per token of the larger "
        "request. A higher value favours small requests, a lower one large requests.",
    )
    launch_tokens: int = new_knob(
        0,
        "Cost of launching a forward, in tokens computed in the same time. 0 measures it at "
        "start. With a higher value, waiting requests share larger forwards.",
        least=0,
    )
    gather_rows: int = new_knob(
        64,
        "Most prompts of small concurrent requests that travel to the scheduler together. 1 sends "
        "every request on its own.",
    )
    gather_ms: int = new_knob(
        1,
        "Most time (ms) that a small request waits for others while earlier ones are being "
        "served. If none is, it does not wait.",
        least=0,
    )
    prefix_caching: PrefixCaching = new_knob(
        PrefixCaching.REPEATED,
        "Which prefixes are added to the prefix cache: repeated (those seen before), always, or "
        "never. Prefixes in the cache are used in any case.",
    )
    attention: AttentionWay = new_knob(
        AttentionWay.AUTO,
        "How attention is computed: auto (fused on a GPU), fused (one Triton kernel), merge "
        "(two, joined by log-sum-exp), merge-fa3 or merge-flashinfer (with that library for the "
        "prefix), or torch.",
    )
    cuda_graphs: int | None = new_knob(
        None,
        "Replay packed forwards of up to so many tokens as CUDA graphs, which are captured at "
        "start. 0 captures none. auto is as many as save time on CUDA with --tp-size 1 and "
        "without --disable-cuda-graph, else 0.",
        least=0,
    )
    moe: MoePolicy = new_knob(
        MoePolicy.AUTO,
        "How to choose the block of rows in which SGLang's Triton kernel computes the experts of "
        "a mixture: auto (least-time where times were measured at start, else padding-ratio), "
        "least-time, padding-ratio, or stock (by tokens alone).",
    )
    moe_source: MoeSource = new_knob(
        MoeSource.HISTORY,
        "The routing by which that block is chosen: history (of earlier forwards), or device (of "
        "the forward itself: two blocks are launched, and one of them computes).",
    )
    known_answers: Switch = new_knob(
        Switch.ON,
        "on: compare packed forwards with SGLang's own on a few known prompts at start, and do "
        "not use them if they differ. off: do not compare.",
    )
    tokenizer: TokenizerChoice = new_knob(
        TokenizerChoice.AUTO,
        "Library that encodes texts, once its ids have equalled Hugging Face's on 100,000 texts: "
        "auto (fastokens if installed and faster), huggingface, fastokens, or gigatoken (its "
        "memory grows with every new word).",
    )
    prefix_splice: Switch = new_knob(
        Switch.ON,
        "on: encode the text that the prompts of a request share only once, where the ids are "
        "proven to be the same. off: encode every prompt as a whole.",
    )
    max_queued_tokens: int = new_knob(
        1 << 22, "Most tokens that may wait to be computed. Requests beyond get HTTP 429."
    )
    max_queued_rows: int = new_knob(
        1 << 20, "Most rows that may wait. Requests beyond get HTTP 429."
    )
    max_queued_mib: int = new_knob(
        1024,
        "Most memory (MiB) of waiting requests. Requests beyond get HTTP 429; one that alone "
        "takes more gets HTTP 400.",
    )
    timeout_ms: int = new_knob(
        0,
        "Answer HTTP 504 to packed requests that cannot be served in so many ms, unless they bring "
        "a timeout of their own. 0 waits for as long as it takes.",
        least=0,
    )
    decode_step_tokens: int = new_knob(
        0,
        "Cost of a decode step, in tokens that a packed forward computes in the same time. 0 "
        "estimates it from the cost of launching a forward.",
        least=0,
    )
    decode_slowdown: int = new_knob(
        4,
        "While packed requests wait, a generated token takes at most so many times as long, plus "
        "one packed forward. With 1, packed requests run only after "
        "--prefill-only-max-wait-steps decode steps.",
    )
    max_wait_steps: int = new_knob(
        8, "Decode steps after which waiting packed requests run in any case."
    )
    schedulers: int = new_knob(
        1,
        "Scheduler processes on one device, behind one front end. More than one helps where the "
        "device waits for the scheduler's Python. They divide the device's memory.",
    )
    scheduler_cores: int = new_knob(
        0, "CPU cores to bind each of several schedulers to. 0 binds none.", least=0
    )
    gc_idle_s: int = new_knob(
        10,
        "Idle seconds after which processes exclude objects made since the last time from garbage "
        "collection. 0 never does.",
        least=0,
    )
    attach: str = new_knob(
        "",
        "Socket file at which front ends in other processes, such as those of sglang-prefill "
        "serve-grpc, attach.",
    )

    def __post_init__(self) -> None:
        for knob in fields(self):
            object.__setattr__(self, knob.name, checked(knob, getattr(self, knob.name)))

    def graph_tokens(self, *, on_cuda: bool, ranks: int) -> int:
        """Most tokens of the largest graph, 0 for none: as configured, else by device.

        Args:
            on_cuda: the device and the model have graphs, and they are not all switched off.
            ranks: number of ranks that share the model. With several there are no graphs by
                default, because all-reduces in graphs were not tried on GPUs.
        """
        by_device = self.max_forward_tokens if on_cuda and ranks == 1 else 0
        asked = by_device if self.cuda_graphs is None else self.cuda_graphs
        return min(asked, self.max_forward_tokens)


def config_from_mapping(values: dict[str, Any]) -> PrefillOnlyConfig | None:
    """Build the configuration from parsed flags or `Engine` keyword arguments.

    Args:
        values: may hold ``enable_prefill_only`` and ``prefill_only_<knob>`` keys; None means
            that a knob was not given. Other keys are ignored.

    Returns:
        None if prefill-only serving was not enabled.

    Raises:
        ConfigError: a knob is out of range, or given although the extension is not enabled.
    """
    given = {
        knob.name: values[KNOB_PREFIX + knob.name]
        for knob in fields(PrefillOnlyConfig)
        if values.get(KNOB_PREFIX + knob.name) is not None
    }
    if not values.get(ENABLE_FIELD):
        if given:
            name = flag_name(next(iter(given)))
            raise ConfigError(f"{name} has no effect without --enable-prefill-only; add that flag.")
        return None
    return PrefillOnlyConfig(**given)
