"""From a problem and a machine to a plan, in pure Python: no arrays, no compiler."""
