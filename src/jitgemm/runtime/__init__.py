"""Native entry points, the thread pool, workspaces, packed handles, and the driver."""
