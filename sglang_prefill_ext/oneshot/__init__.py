"""Requests that are one packed forward: queue, planner, layout, executor and read-outs."""
