"""Kernels against what PyTorch and SGLang offer: ``python -m bench.kernels.bench_<kernel>``.

Needs a CUDA device, torch, triton and `triton_kernels/` on the path; SGLang only where a baseline
comes from it. Every result is one line of JSON.
"""
