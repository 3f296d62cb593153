"""SGLang's data-parallel controller: packed requests by load, several schedulers on a device."""
