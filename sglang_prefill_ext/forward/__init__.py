"""One planned forward on a device: upload, layers, read-outs, graphs."""
