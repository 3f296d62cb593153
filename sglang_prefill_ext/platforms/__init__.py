"""Platform plugins for SGLang: the CPU reference platform."""
