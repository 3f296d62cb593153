"""Label logits, and the log-sum-exp that normalises them, without the logits of the vocabulary."""

from prefill_kernels.label_readout.op import label_readout

__all__ = ["label_readout"]
