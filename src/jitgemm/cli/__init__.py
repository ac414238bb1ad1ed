"""Command line: ``info``, ``demo`` and ``bench``."""
