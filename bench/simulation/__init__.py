"""Discrete-event simulations of orders of service; nothing but arithmetic runs."""
