"""Decides which replicas compute which rows of a request. Pure."""
