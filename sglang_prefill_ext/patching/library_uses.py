"""What is called of attention libraries, where they are installed and can be imported.

A server needs none of them: it asks for one by a flag, and compares its numbers at start. So a
library that is missing is no mismatch, and one that differs is for `doctor` to tell.
"""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_USED_BY = ("attention.prefix_libraries",)

LIBRARY_USES = (
    Use(
        id="U330",
        target="sgl_kernel.flash_attn.flash_attn_varlen_func",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="attention over a prefix by FlashAttention-3 (merge-fa3)",
        signature="(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, "
        "seqused_q=None, seqused_k=None, page_table=None, softmax_scale=None, causal=False, "
        "qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1), "
        "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, only_qv=False, "
        "sm_margin=0, return_softmax_lse=False, sinks=None, score_mod=None, aux_tensors=None, "
        "ver=3, out=None)",
    ),
    Use(
        id="U331",
        target="flashinfer.single_prefill_with_kv_cache",
        group=Group.SCHEDULER,
        used_by=_USED_BY,
        why="attention over a prefix by FlashInfer (merge-flashinfer)",
        signature="(q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, "
        "custom_mask=None, packed_custom_mask=None, causal=False, kv_layout='NHD', "
        "pos_encoding_mode='NONE', use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, "
        "logits_soft_cap=None, rope_scale=None, rope_theta=None, backend='auto', "
        "return_lse=False, kv_cache_sf=None, k_scale=None, v_scale=None)",
    ),
)
