"""Protocol between workers and parameter servers: frames on sockets, and their client."""
