"""The causal convolution of recurrent layers over packed prompts."""

from prefill_kernels.causal_conv.op import Taps, causal_conv

__all__ = ["Taps", "causal_conv"]
