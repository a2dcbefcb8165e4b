"""The configurations of Kestrel, which are programs in Scala: so much of the language as they are written in."""
