"""Front ends in processes of their own, attached to a running engine over a ZMQ socket."""
