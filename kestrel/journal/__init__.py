"""Kestrel's journal format.

It does not import Twisted, so that tools and Spark workers stay light.
"""
