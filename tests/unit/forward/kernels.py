"""The Triton kernels that forwards launch."""

from prefill_kernels.label_readout import kernel as label_readout
from prefill_kernels.merge_state import kernel as merge_state
from prefill_kernels.shared_prefix_attention import kernel as attention

KERNELS = (
    attention.attention_kernel,
    merge_state.merge_states_kernel,
    merge_state.merge_parts_kernel,
    label_readout.label_logits_kernel,
    label_readout.block_lse_kernel,
)
