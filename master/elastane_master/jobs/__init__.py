"""The jobs that a master serves, and whether it may: job servers, leadership, limits, stored records."""
