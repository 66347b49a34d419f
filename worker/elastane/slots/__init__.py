"""What workers and parameter servers say to each other about slots: frames on sockets."""
