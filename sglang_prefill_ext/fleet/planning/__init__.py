"""Which replicas compute which rows of a request. Pure."""
