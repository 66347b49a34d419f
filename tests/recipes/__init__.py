"""Public scripts in their own words (examples/recipes), converted, beside their originals: see `beside`."""
