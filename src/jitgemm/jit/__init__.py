"""From specs to machine code: target selection, compilation, the object cache."""
