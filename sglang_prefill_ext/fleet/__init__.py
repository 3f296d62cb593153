"""Several engines: rows of a request are divided over the replicas that answer them soonest."""
