"""Data about element types and instruction sets; no code generation here."""
