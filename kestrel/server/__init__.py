"""Where everything is joined: twistd's way in, and the only place that knows the real reactor."""
