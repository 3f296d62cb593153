"""Cause faults of engines, routers and connections while clients send requests to a fleet."""
