"""`python -m elastane_operator`."""

from __future__ import annotations

from elastane_operator.cli import main

if __name__ == "__main__":
    main()
