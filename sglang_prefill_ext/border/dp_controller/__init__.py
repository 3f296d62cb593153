"""Hooks in SGLang's data-parallel controller."""
