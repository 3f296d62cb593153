"""Hooks in SGLang's HTTP application: routes of our own, and shorter ways into its routes."""
