"""kestrel-qpack: verification and packing of queue files."""
