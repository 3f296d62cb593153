"""Runs the packed runtime on SGLang's own radix tree, allocator and KV pool; writes what happened.

``radix_runner.py OUT MODEL_DIR`` runs random episodes for both page sizes and both kinds of
executor. No model runs: K and V of a token are a number that depends on all tokens up to it, so a
forward that loads them can check that they belong to its prefix. It runs as a script, because
SGLang's state is one for a process.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.mem_cache.allocator import (  # noqa: E402
    PagedTokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from sglang.srt.mem_cache.base_prefix_cache import (  # noqa: E402
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import (  # noqa: E402
    MHATokenToKVPool,
    MLATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, get_memory, publish  # noqa: E402
from sglang.srt.server_args import prepare_server_args  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

from sglang_prefill_ext.attention.inputs import HeadShape  # noqa: E402
from sglang_prefill_ext.border.model.kv_pool import SglangPool, plain_pool, room_in  # noqa: E402
from sglang_prefill_ext.border.scheduler.radix import prefix_cache_of  # noqa: E402
from sglang_prefill_ext.config import Order, PrefillOnlyConfig, PrefixCaching  # noqa: E402
from sglang_prefill_ext.forward.kv_pool import OwnPool  # noqa: E402
from sglang_prefill_ext.scheduling import failures  # noqa: E402
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad  # noqa: E402
from sglang_prefill_ext.scheduling.job import Job  # noqa: E402
from sglang_prefill_ext.scheduling.planner import ForwardPlan  # noqa: E402
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy  # noqa: E402
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward  # noqa: E402
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime  # noqa: E402
from sglang_prefill_ext.scheduling.split import split_request  # noqa: E402
from sglang_prefill_ext.wire.arrays import Float32Array, Int32Array  # noqa: E402
from sglang_prefill_ext.wire.packed import PackedRows  # noqa: E402
from sglang_prefill_ext.wire.read import Labels  # noqa: E402

EPISODES = 2_500
"""Episodes of each of the four set-ups; an episode begins and ends idle."""

SLOTS, LONGEST = 192, 100
"""Slots of the pool, and tokens of the longest prefix: two long prefixes fill the pool."""

HEADS, CPU = HeadShape(1, 1, 1, 1), torch.device("cpu")

POLICY = SchedulingPolicy(
    budget=ForwardBudget(90),  # longer prefixes are computed in parts
    order=Order.FCFS,
    ageing=1,
    launch_tokens=40,
    limits=QueueLoad(tokens=10**6, rows=10**6, bytes=10**9),
)

failures.logger.disabled = True


def key_values(tokens: Sequence[int]) -> torch.Tensor:
    """A number per token that depends on all up to it; ``[tokens, 1, 1]``, exact in float32."""
    values, value = [], 1
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
        values.append(value)
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def model_config(**about: Any) -> SimpleNamespace:
    text = SimpleNamespace(**about)
    return SimpleNamespace(context_len=128, hf_text_config=text, is_embedding_gemma=False)


class Memory:
    """The tree, its pools, and what was committed to it."""

    def __init__(self, page_size: int, caching: PrefixCaching, *, disable: bool = False) -> None:
        self.page_size, self.keeps_all = page_size, caching is PrefixCaching.ALWAYS
        self.pool = MHATokenToKVPool(
            SLOTS, page_size, torch.float32, 1, 1, 1, "cpu", False, enable_alt_stream=False
        )
        if page_size == 1:
            allocator = TokenToKVPoolAllocator(SLOTS, torch.float32, "cpu", self.pool, False)
        else:
            allocator = PagedTokenToKVPoolAllocator(
                SLOTS, page_size, torch.float32, "cpu", self.pool, False
            )
        self.allocator = allocator
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=disable,
                req_to_token_pool=ReqToTokenPool(4, 128, "cpu", False),
                token_to_kv_pool_allocator=allocator,
                page_size=page_size,
                tree_components=(ComponentType.FULL,),
                eviction_policy=get_memory().radix_eviction_policy,
            )
        )
        runner = SimpleNamespace(
            token_to_kv_pool=self.pool,
            dtype=torch.float32,
            canary_manager=None,
            model_config=model_config(),
        )
        self.scheduler = SimpleNamespace(
            tree_cache=self.tree,
            token_to_kv_pool_allocator=allocator,
            tp_worker=SimpleNamespace(model_runner=runner),
            enable_hierarchical_cache=False,
            enable_unified_cache_external_linker=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )
        config = PrefillOnlyConfig(prefix_caching=caching)
        self.cache: Any = prefix_cache_of(
            self.scheduler, config, room_in(SglangPool(self.pool), self.scheduler)
        )
        self.committed: set[tuple[int, ...]] = set()
        """Beginnings of whole pages that were ever committed since the last flush."""
        self.open: list[Watched] = []
        """Transactions that have not ended."""

    def watched(self, slots: torch.Tensor) -> Watched:
        """The open transaction that some slots belong to."""
        return next(each for each in self.open if _memory_of(each.slots) == _memory_of(slots))

    def record_commit(self, tokens: Sequence[int]) -> None:
        for stop in range(self.page_size, len(tokens) + 1, self.page_size):
            self.committed.add(tuple(tokens[:stop]))

    def check_idle(self) -> None:
        free, evictable = self.allocator.available_size(), self.tree.evictable_size()
        assert self.tree.protected_size() == 0
        assert free + evictable == SLOTS, (free, evictable)
        self.tree.sanity_check()

    def flush(self) -> None:
        self.tree.reset()
        self.allocator.clear()
        self.committed.clear()


class Watched:
    """A transaction that passes every call on, and checks it."""

    def __init__(self, memory: Memory, prefix: Int32Array, seen: Counter[str], inner: Any) -> None:
        self.prefix: list[int] = prefix.tolist()
        self._memory, self._seen, self._inner = memory, seen, inner
        self.cached = inner.cached
        matched = tuple(self.prefix[: self.cached])
        assert not matched or matched in memory.committed, "something uncommitted was matched"
        seen["cached"] += self.cached > 0
        seen["open"] += 1
        memory.open.append(self)

    @property
    def slots(self) -> torch.Tensor:
        return self._inner.slots

    def reserve(self, *, whole: bool) -> bool:
        has_room = self._inner.reserve(whole=whole)
        self._seen["whole"] += whole
        self._seen["no_room"] += not has_room
        stored = len(self.slots) - self.cached
        if not has_room:
            assert stored == 0
        elif whole:
            assert len(self.slots) == len(self.prefix)
        else:
            assert stored % self._memory.page_size == 0
        return has_room

    def commit(self) -> None:
        kept = max(self.cached, min(self._inner._commit_tokens, len(self.slots)))
        self._inner.commit()
        self._memory.record_commit(self.prefix[:kept])
        self._end("commit")

    def rollback(self) -> None:
        self._inner.rollback()
        self._end("rollback")

    def check_loaded(self, held: int) -> None:
        """Assert that the K/V of its first tokens are those of its own prefix."""
        k, v = (x[self.slots[:held]] for x in SglangPool(self._memory.pool).buffers(0))
        wanted = key_values(self.prefix[:held])
        assert torch.equal(k, wanted), "K of another prefix"
        assert torch.equal(v, -wanted), "V of another prefix"

    def store(self, start: int, stop: int) -> None:
        """Store the K/V of some tokens, as a forward does."""
        wanted = key_values(self.prefix)[start:stop]
        SglangPool(self._memory.pool).store(0, self.slots[start:stop], wanted, -wanted)

    def _end(self, how: str) -> None:
        self._memory.open.remove(self)
        self._seen["open"] -= 1
        self._seen[how] += 1


class WatchedCache:
    def __init__(self, memory: Memory, seen: Counter[str]) -> None:
        self._memory, self._seen = memory, seen
        self.shares, self.capacity = memory.cache.shares, memory.cache.capacity
        self.page_tokens = memory.cache.page_tokens

    def begin_private(self, num_tokens: int) -> Any:
        raise AssertionError("every prefix is made of tokens")

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> Watched:
        assert not adapter
        return Watched(
            self._memory, prefix, self._seen, self._memory.cache.begin(prefix, keep=keep)
        )

    def begin_row(self, beginning: Int32Array, adapter: str = "") -> Watched:
        inner = self._memory.cache.begin_row(beginning, adapter)
        in_pages = len(beginning) // self._memory.page_size * self._memory.page_size
        self._seen["row_found"] += 0 < inner.cached == in_pages
        return Watched(self._memory, beginning, self._seen, inner)

    def rows_seen(self, rows: PackedRows, least: int) -> NDArray[np.int64] | None:
        found: NDArray[np.int64] | None = self._memory.cache.rows_seen(rows, least)
        self._seen["rows_seen"] += found is not None
        return found

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        cached = self._memory.cache.cached_tokens(prefix, adapter)
        matched = tuple(prefix[:cached].tolist())
        assert not matched or matched in self._memory.committed, "something uncommitted was seen"
        return cached


@dataclass
class Executor:
    """Loads and stores K/V; fails at random before or after storing, or at the end."""

    memory: Memory
    asynchronous: bool
    random: random.Random
    seen: Counter[str]
    failure_rate: float = 0.0
    causal: bool = True

    def launch(self, plan: ForwardPlan) -> Completion:
        self._maybe_fail("launch")
        sources = []
        for span, loaded, stored in zip(plan.layout.groups, plan.held, plan.stores, strict=True):
            assert (0 if loaded is None else len(loaded)) == span.held
            if loaded is not None:
                sources.append((self.memory.watched(loaded), span.held))
            if stored is not None:
                assert len(stored) <= span.fresh
                self.memory.watched(stored).store(span.held, span.held + len(stored))
        for source, num_held in sources:
            source.check_loaded(num_held)
        self._maybe_fail("stored")
        return Completion(self, plan, sources)

    def _maybe_fail(self, where: str) -> None:
        if self.random.random() < self.failure_rate:
            self.seen[f"failed_{where}"] += 1
            raise RuntimeError(where)


@dataclass
class Completion:
    executor: Executor
    plan: ForwardPlan
    sources: list[tuple[Watched, int]]

    def wait(self) -> Float32Array:
        for source, num_held in self.sources:
            source.check_loaded(num_held)  # locked slots must stay while the forward may read them
        self.executor._maybe_fail("wait")
        return np.zeros(self.plan.reads.num_values, dtype=np.float32)


def rows_of(prefix: list[int], lens: list[int]) -> PackedRows:
    return request_of(prefix, [[99] * length for length in lens])


def request_of(prefix: list[int], rows: list[list[int]]) -> PackedRows:
    return PackedRows(
        tokens=np.concatenate([prefix, *rows]).astype(np.int32),
        prefix_len=len(prefix),
        suffix_lens=np.array([len(row) for row in rows], dtype=np.int32),
        read=Labels(np.array([1], dtype=np.int32)),
    )


def _memory_of(slots: torch.Tensor) -> int:
    return slots.untyped_storage().data_ptr()


class StockRequest:
    """Uses the tree as a stock request does: holds its path, then inserts or gives up."""

    def __init__(self, memory: Memory, tokens: list[int]) -> None:
        self._memory, tree = memory, memory.tree
        self._tokens = tokens[: len(tokens) // memory.page_size * memory.page_size]
        match = tree.match_prefix(MatchPrefixParams(key=self._key))
        self._cached = match.device_prefix_len
        self._lock = tree.lock(match.last_device_node)
        path = tree.path_device_indices(match.last_device_node)[: self._cached]
        needed = len(self._tokens) - self._cached
        memory.allocator.evict_to_free_tokens(tree, needed)
        self._slots = memory.allocator.alloc(needed) if needed else None
        if self._slots is None:
            self._tokens = self._tokens[: self._cached]
            return
        self._slots = self._slots.clone()
        values = key_values(self._tokens)
        self._value = torch.cat([path, self._slots])
        memory.pool.k_buffer[0][self._slots] = values[self._cached :]
        memory.pool.v_buffer[0][self._slots] = -values[self._cached :]

    @property
    def _key(self) -> RadixKey:
        return RadixKey(array("q", self._tokens))

    def end(self, *, insert: bool) -> None:
        memory = self._memory
        if self._slots is not None and insert:
            memory.tree.insert(
                InsertParams(key=self._key, value=self._value, prev_prefix_len=self._cached)
            )
            memory.record_commit(self._tokens)
        elif self._slots is not None:
            memory.allocator.free(self._slots)
        memory.tree.unlock(self._lock)


class Episodes:
    """Makes random calls of one set-up, and counts the outcomes."""

    def __init__(self, page_size: int, caching: PrefixCaching, *, asynchronous: bool) -> None:
        self.random = random.Random(f"{page_size} {asynchronous}")
        self.seen: Counter[str] = Counter()
        self.memory = Memory(page_size, caching)
        self.executor = Executor(self.memory, asynchronous, self.random, self.seen)
        cache = WatchedCache(self.memory, self.seen)
        self.runtime = PackedRuntime(self.executor, self._answer, POLICY, cache=cache)
        self.stock: list[StockRequest] = []
        self.answered: set[str] = set()
        self.submitted = 0

    def _answer(self, ended: Sequence[Ended]) -> None:
        for job, result in ended:
            assert job.rid not in self.answered, "a request is answered once"
            self.answered.add(job.rid)
            self.seen[result.status] += 1

    def run(self) -> dict[str, int]:
        calls = [self.submit] * 4 + [self.submit_items] * 3 + [self.runtime.step] * 5
        calls += [self.abort, self.begin_stock] * 2 + [self.end_stock, self.evict]
        for _ in range(EPISODES):
            self.executor.failure_rate = self.random.choice([0.0, 0.0, 0.1, 0.4])
            for _ in range(self.random.randint(2, 16)):
                self.random.choice(calls)()
            self.become_idle()
            if self.random.random() < 0.03:
                self.memory.flush()
        return dict(self.seen)

    def become_idle(self) -> None:
        while self.runtime.busy:
            self.runtime.step()
        while self.stock:
            self.end_stock()
        assert self.seen["open"] == 0
        assert len(self.answered) == self.submitted
        self.memory.check_idle()

    def prefix(self) -> list[int]:
        """The beginning of one of a few long texts, sometimes with a different end."""
        text = random.Random(self.random.randrange(5))
        tokens = [text.randrange(50) for _ in range(self.random.randint(1, LONGEST))]
        branch = self.random.choice([0, 0, 3, 20])
        return tokens[: len(tokens) - branch] + [60 + branch] * min(branch, len(tokens))

    def submit(self) -> None:
        prefix, rows = self.prefix(), self.random.randint(1, 4)
        lens = [self.random.randint(1, 12) for _ in range(rows)]
        keep = self.random.random() < 0.3
        self._submit(rows_of(prefix, lens), keep_prefix=keep)

    def submit_items(self) -> None:
        """Some of few items that stand in front of a query, or behind the beginning of a prompt."""
        prefix = [70] * self.random.choice([0, 0, 3, 40])
        end = [self.random.randrange(50)] * self.random.randint(1, 6)
        items = [[80 + item] * (17 + 4 * item) for item in range(6)]
        chosen = [item + end for item in self.random.sample(items, self.random.randint(2, 5))]
        self._submit(request_of(prefix, chosen))

    def _submit(self, rows: PackedRows, **options: Any) -> None:
        self.runtime.submit(f"{self.submitted}.", rows, None, **options)
        self.submitted += 1

    def abort(self) -> None:
        waiting = self.submitted - len(self.answered)
        self.runtime.abort(f"{self.submitted - self.random.randint(0, waiting)}.")

    def begin_stock(self) -> None:
        self.stock.append(StockRequest(self.memory, self.prefix()))

    def end_stock(self) -> None:
        if self.stock:
            index = self.random.randrange(len(self.stock))
            self.stock.pop(index).end(insert=self.random.random() < 0.7)

    def evict(self) -> None:
        self.memory.tree.evict(EvictParams(num_tokens=self.random.randint(1, SLOTS)))


def caches_if_changed() -> dict[str, bool]:
    """Whether a prefix cache is used, for the normal and for unsupported pools and trees."""

    def cached(memory: Memory, **changes: Any) -> bool:
        scheduler = SimpleNamespace(**{**vars(memory.scheduler), **changes})
        own = OwnPool({0: HEADS}, torch.float32, CPU)
        pool = plain_pool(scheduler.tp_worker.model_runner, HEADS) or own
        return prefix_cache_of(scheduler, PrefillOnlyConfig(), room_in(pool, scheduler)).shares

    def of_runner(**changes: Any) -> bool:
        runner = SimpleNamespace(**vars(plain.scheduler.tp_worker.model_runner) | changes)
        return cached(plain, tp_worker=SimpleNamespace(model_runner=runner))

    plain = Memory(1, PrefixCaching.ALWAYS)
    window_pool = SWAKVPool.__new__(SWAKVPool)  # its layers with a window keep fewer tokens
    with envs.SGLANG_USE_HND_KVCACHE.override(True):
        head_by_head = Memory(1, PrefixCaching.ALWAYS)
    latents = MLATokenToKVPool(SLOTS, 1, torch.float32, 4, 2, 1, "cpu", False)
    adapters = SimpleNamespace(target_modules={"kv_b_proj"})
    long_rope = {"rope_type": "longrope", "original_max_position_embeddings": 64}
    return {
        "plain": cached(plain),
        "latents": of_runner(token_to_kv_pool=latents, lora_manager=None),
        "adapted_latents": of_runner(token_to_kv_pool=latents, lora_manager=adapters),
        "disabled": cached(Memory(1, PrefixCaching.ALWAYS, disable=True)),
        "hierarchical": cached(plain, enable_hierarchical_cache=True),
        "external": cached(plain, enable_unified_cache_external_linker=True),
        "other_precision": of_runner(dtype=torch.bfloat16),
        "head_by_head": cached(head_by_head),
        "drafted_by_a_table": cached(plain, spec_algorithm=SpeculativeAlgorithm.NGRAM),
        "drafted_by_a_model": cached(plain, spec_algorithm=SpeculativeAlgorithm.STANDALONE),
        "kv_canary": of_runner(canary_manager=object()),
        "long_rope": of_runner(model_config=model_config(rope_parameters=long_rope)),
        "window_pool": of_runner(token_to_kv_pool=window_pool),
    }


def protected_after_a_begin_that_raises() -> int:
    """Slots that stay locked, of a prefix whose first half is cached."""
    memory, prefix = Memory(1, PrefixCaching.ALWAYS), np.arange(40, dtype=np.int32)
    first = memory.cache.begin(prefix[:20], keep=False)
    assert first.reserve(whole=False)
    first.commit()

    def fail(need_size: int) -> None:
        raise MemoryError

    memory.allocator.alloc = fail
    job = Job("job", rows_of(prefix.tolist(), [1]))
    job.pieces = split_request(job.rows, POLICY.budget)
    try:
        PrefixedForward([job], memory.cache)
    except MemoryError:
        return int(memory.tree.protected_size())
    raise AssertionError("begin did not raise")


def held_at_most(most: int) -> dict[str, Any]:
    """How a cache serves two equal prefixes of which so many tokens can be held."""
    memory, prefix = Memory(1, PrefixCaching.ALWAYS), np.arange(40, dtype=np.int32)
    pool = SglangPool(memory.pool)
    pool.most_held = most
    config = PrefillOnlyConfig(prefix_caching=PrefixCaching.ALWAYS)
    cache: Any = prefix_cache_of(memory.scheduler, config, room_in(pool, memory.scheduler))
    free = memory.allocator.available_size()
    first = cache.begin(prefix, keep=False)
    reserved = first.reserve(whole=False)
    first.commit()
    second = cache.begin(prefix, keep=False)
    whole = second.reserve(whole=True)
    second.rollback()
    return {
        "capacity": cache.capacity,
        "kept": free - memory.allocator.available_size(),
        "reserved": (reserved, whole),
        "cached": (first.cached, second.cached, cache.cached_tokens(prefix)),
        "protected": memory.tree.protected_size(),
    }


def left_of_a_used_prefix(policy: str) -> int:
    """Tokens that stay cached of a prefix that four forwards used, if SGLang evicts half of the
    tree by a policy. The other half is a prompt that two stock requests inserted later."""
    with get_memory().override(radix_eviction_policy=policy):
        memory = Memory(1, PrefixCaching.ALWAYS)
    prefix, prompt = np.arange(20, dtype=np.int32), np.arange(100, 120, dtype=np.int32)
    for _ in range(4):
        transaction = memory.cache.begin(prefix, keep=False)
        assert transaction.reserve(whole=False)
        transaction.commit()
    slots = memory.allocator.alloc(len(prompt)).to(torch.int64)
    for held in (0, len(prompt)):
        key = RadixKey(array("q", prompt.tolist()))
        memory.tree.insert(InsertParams(key=key, value=slots, prev_prefix_len=held))
    memory.tree.evict(EvictParams(num_tokens=len(prompt)))
    assert memory.cache.cached_tokens(prefix) + memory.cache.cached_tokens(prompt) == 20
    memory.check_idle()
    return int(memory.cache.cached_tokens(prefix))


def main() -> None:
    out, model = sys.argv[1:]
    torch.set_num_threads(1)
    args = prepare_server_args(["--model-path", model, "--device", "cpu", "--log-level", "error"])
    args.resolve_once()
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    report: dict[str, Any] = {"caches": caches_if_changed(), "episodes": {}}
    report["protected"] = protected_after_a_begin_that_raises()
    report["held_at_most"] = held_at_most(20)
    report["left"] = {policy: left_of_a_used_prefix(policy) for policy in ("lru", "lfu")}
    for page_size in (1, 16):
        for asynchronous in (False, True):
            caching = PrefixCaching.REPEATED if asynchronous else PrefixCaching.ALWAYS
            episodes = Episodes(page_size, caching, asynchronous=asynchronous)
            report["episodes"][f"{page_size}-{asynchronous}"] = episodes.run()
    Path(out).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
