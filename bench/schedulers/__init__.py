"""When several schedulers on one device pay: a model, and the measurement to hold against it."""
