"""Live queues as streams: out of servers, into servers; and archives that grow."""
