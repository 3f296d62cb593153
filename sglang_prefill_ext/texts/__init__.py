"""Texts to token ids as SGLang would encode them: shared text once, by the fastest library."""
