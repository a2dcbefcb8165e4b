"""The log engine: the mechanisms that the journal and the scroll storage share."""
