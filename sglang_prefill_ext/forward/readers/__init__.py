"""What is read off the hidden states of a forward."""
