"""Check whether throughput, memory and pauses of a server drift under a long steady load."""
