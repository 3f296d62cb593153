"""Several schedulers on one device: memory, balance, cores. Neither torch nor SGLang."""
