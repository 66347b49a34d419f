"""train_matrix.py, of whose steps a test is told (tests/probe_points.py)."""

import probed  # noqa: F401
import train_matrix

if __name__ == "__main__":
    train_matrix.main()
