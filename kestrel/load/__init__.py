"""`kestrel-load`: puts a load on a server, and says how it bears it.

| module | what is in it |
|---|---|
| `cli`, `options` | the command line |
| `flood`, `many_clients`, `put_many`, `packing`, `leaky_reader` | the tools, one each |
| `putting`, `taking` | many requests at once, to and from a queue |
| `items`, `ledger` | numbered items, and which of them were stored and came back |
| `wires`, `wire_text` | the requests of the three protocols, alike |
| `pump` | so many requests under way on a connection |
| `work`, `queues` | what the tools have in common: connections, the end, the queues before and after |
| `figures`, `report`, `progress` | what was measured, and how it is shown |
"""
