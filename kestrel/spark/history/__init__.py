"""Item histories, made by replaying the records of each journal in order."""
