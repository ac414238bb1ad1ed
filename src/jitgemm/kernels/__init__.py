"""Kernel sources, written once in the kernel language, and the registry that lists them."""
