"""Merge partial attention results by their log-sum-exp."""

from prefill_kernels.merge_state.op import merge_parts, merge_state

__all__ = ["merge_parts", "merge_state"]
