"""The store on disk, and the runners that measure a plan: in this process, in a pool, on Ray."""
