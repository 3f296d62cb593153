"""Label logits, and the log-sum-exp that normalises them, without the logits of the vocabulary."""

from prefill_kernels.label_readout.op import combine_shards, label_readout

__all__ = ["combine_shards", "label_readout"]
