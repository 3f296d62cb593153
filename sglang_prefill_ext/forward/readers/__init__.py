"""Read-outs: from the hidden states of a forward to label values, tokens and vectors."""
