"""Discrete-event simulation of a fleet: which replica gets which rows; no server runs."""
