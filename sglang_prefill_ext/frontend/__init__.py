"""Reads calls of all kinds, packs them, waits for the scheduler, and makes their answers."""
