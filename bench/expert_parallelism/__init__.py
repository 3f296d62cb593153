"""Predict which is faster: dividing requests over replicas, or dividing experts over GPUs."""
