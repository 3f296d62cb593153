"""Where the time of one `/v1/score` request goes."""
