"""Parser for the subset of Scala in which configurations of Kestrel are written, and their conversion."""
