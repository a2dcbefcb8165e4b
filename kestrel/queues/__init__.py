"""Names to queues, and the life of one queue."""
