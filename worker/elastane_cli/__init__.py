"""The command `elastane`: its commands, what they show, and rehearsals of jobs under faults."""
