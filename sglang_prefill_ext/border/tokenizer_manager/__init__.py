"""Hooks in SGLang's front-end processes, around its tokenizer manager."""
