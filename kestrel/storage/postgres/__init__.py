"""A storage backend that keeps Kestrel queues in PostgreSQL: `--storage postgres:CONNECTION`.

    factory.py      creates the storage; the only module that is imported without the driver
    description.py  checks the connection string and options of `postgres:...`
    database.py     implements `IDatabase` with three connections
    connection.py   opens a connection on demand, and closes it if the database does not reply
    failures.py     maps errors of the database to errors of the storage
    session.py      settings of each session
    schema.py       tables
    ownership.py    exclusive ownership: lock, epoch, and number of the last batch
    batch_sql.py    converts a batch to SQL
    queries.py      reads queues and items
    cleanup.py      deletes the items of removed queues in slices
"""
