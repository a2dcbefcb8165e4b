"""Where codecs and sessions meet transports."""
