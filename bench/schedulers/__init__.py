"""When several schedulers on one device pay off: a model, and measurements to check it."""
