"""Faults of engines, routers and connections while clients ask a fleet."""
