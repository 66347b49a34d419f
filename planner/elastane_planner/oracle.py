"""All plans, device orders and schedules of tiny cases, and a lower bound of large ones."""
