"""Requests divided over replicas with all experts, against experts divided over GPUs: predicted."""
