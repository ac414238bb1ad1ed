"""The kernel language: one vocabulary, two backends (LLVM text, checking interpreter)."""
