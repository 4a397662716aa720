"""A model server: vLLM's token routes and the agents' dialects, before one embedded engine."""
