"""Connections: transports and listening ports for codecs and sessions."""
