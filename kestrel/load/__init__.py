"""`kestrel-load`: load tests for a server, with reports on throughput, latency and lost items.

| module | contents |
|---|---|
| `cli`, `options` | the command line |
| `load_tools` | the tools, one function each |
| `flows` | pipelined puts to a queue and gets from it; preparing and restoring queues |
| `numbered_items` | numbered items, and a record of which were stored and taken |
| `load_dialects` | a common interface to the requests of the three protocols |
| `load_run` | connections, a fixed number of outstanding requests on each, the end of a run |
| `report` | measurements and their output |
"""
