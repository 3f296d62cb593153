"""Several schedulers on one device: memory shares, load balance, cores. No torch, no SGLang."""
