"""Discrete-event simulation of a fleet: who gets which rows; nothing but arithmetic runs."""
