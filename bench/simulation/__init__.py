"""Discrete-event simulations of scheduling orders; no server runs."""
