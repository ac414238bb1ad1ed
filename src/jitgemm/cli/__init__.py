"""Command line: ``info``, ``demo``, ``bench`` and ``clear-cache``."""
