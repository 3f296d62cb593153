"""Whether a server stays what it was over a long time of steady load."""
