"""The settings: their meaning, the parsing of a file, and the settings of each queue."""
