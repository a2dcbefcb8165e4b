"""The one seam to the file system."""
