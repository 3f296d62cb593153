"""SGLang's scheduler process: hooks that run packed forwards beside stock batches."""
