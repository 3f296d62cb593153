"""Stock SGLang against the extension, in turn on the same machine: ``python -m bench``."""
