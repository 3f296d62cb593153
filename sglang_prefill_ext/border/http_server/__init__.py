"""Hooks in SGLang's HTTP application: routes of our own, and fast versions of SGLang's routes."""
