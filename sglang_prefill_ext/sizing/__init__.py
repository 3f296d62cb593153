"""What a model needs of devices, and how to divide it over several: counted and predicted. Pure."""
