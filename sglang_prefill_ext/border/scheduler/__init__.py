"""Hooks in SGLang's scheduler process: packed work beside the stock batch flow."""
