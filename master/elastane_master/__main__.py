"""`python -m elastane_master`."""

from elastane_master.cli import app

if __name__ == "__main__":
    app(prog_name="elastane master")
