"""Several engines behind a router, which divides the rows of a request over the replicas."""
