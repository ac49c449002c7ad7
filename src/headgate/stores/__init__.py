"""The stores: where the queues of limiters are kept."""
