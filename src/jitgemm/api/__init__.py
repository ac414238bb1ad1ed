"""Public functions: validation, NumPy semantics, plans."""
