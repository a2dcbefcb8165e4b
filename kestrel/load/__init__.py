"""`kestrel-load`: load tests for a server, with reports on throughput, latency and lost items.

| module | contents |
|---|---|
| `cli`, `options` | the command line |
| `flood`, `many_clients`, `put_many`, `packing`, `leaky_reader` | the tools, one each |
| `producer`, `consumer` | pipelined puts to a queue and gets from it |
| `numbered_items`, `ledger` | numbered items, and a record of which were stored and taken |
| `load_dialects`, `text_dialect`, `queue_state` | a common interface to the requests of the three protocols |
| `pump` | a fixed number of outstanding requests on a connection |
| `load_run`, `load_queues` | common parts of the tools: connections, the end of a run, preparing and restoring queues |
| `run_stats`, `report`, `run_progress` | measurements and their output |
"""
