"""Encodes texts as SGLang would: with the fastest library that agrees, and shared text once."""
