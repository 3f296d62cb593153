"""What maintainers run in a checkout: generated code, locks and tables. No part of the package."""
