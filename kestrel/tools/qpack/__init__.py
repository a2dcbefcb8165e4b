"""kestrel-qpack: queues' files looked through, and made small."""
