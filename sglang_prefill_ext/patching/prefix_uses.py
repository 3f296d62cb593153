"""What packed prefixes use of SGLang's radix cache and KV pool; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_CACHE = "sglang.srt.mem_cache"
_POOL = f"{_CACHE}.memory_pool.MHATokenToKVPool"
_TREE = f"{_CACHE}.unified_radix_cache.UnifiedRadixCache"

PREFIX_USES = (
    Use(
        id="U70",
        target=_TREE,
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="the tree, if it is one that packed work can share",
        members=("disable", "page_size"),
    ),
    Use(
        id="U71",
        target=f"{_TREE}.match_prefix",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="how much of a prefix is cached",
        signature="(self, params)",
    ),
    Use(
        id="U72",
        target=f"{_CACHE}.base_prefix_cache.MatchPrefixParams",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="what to look for",
        members=("key",),
    ),
    Use(
        id="U73",
        target=f"{_CACHE}.base_prefix_cache.MatchResult",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="what was found",
        members=("device_prefix_len", "last_device_node"),
    ),
    Use(
        id="U74",
        target=f"{_CACHE}.radix_cache.RadixKey",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="the tokens of a prefix, and the adapter that it is computed with",
        members=("extra_key",),
    ),
    Use(
        id="U75",
        target=f"{_TREE}.path_device_indices",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="slots of the cached tokens",
        signature="(self, node)",
    ),
    Use(
        id="U76",
        target=f"{_TREE}.lock",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="keeps them from being evicted",
        signature="(self, node_id, skip_lock_components=())",
    ),
    Use(
        id="U77",
        target=f"{_TREE}.unlock",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="lets them be evicted again",
        signature="(self, lock)",
    ),
    Use(
        id="U78",
        target=f"{_TREE}.insert",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="commits a prefix",
        signature="(self, params)",
    ),
    Use(
        id="U79",
        target=f"{_CACHE}.base_prefix_cache.InsertParams",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.radix",),
        why="what to commit",
        members=("key", "value", "prev_prefix_len"),
    ),
    Use(
        id="U80",
        target=_POOL,
        group=Group.SCHEDULER,
        used_by=("border.scheduler.kv_pool",),
        why="reads K/V, if they are in the model's own format",
        members=("dtype", "kv_cache_layout", "get_kv_buffer"),
    ),
    Use(
        id="U81",
        target=f"{_POOL}.set_kv_buffer",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.kv_pool",),
        why="writes the K/V of a new prefix",
        signature="(self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None, "
        "layer_id_override=None, dcp_kv_mask=None)",
    ),
    Use(
        id="U82",
        target=f"{_CACHE}.memory_pool.KVWriteLoc",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.kv_pool",),
        why="where to write them",
        members=("physical",),
    ),
)
