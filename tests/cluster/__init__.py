"""Hold tests that run on several nodes: machines made of namespaces, with a real cluster manager on them."""
