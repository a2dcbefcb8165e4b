"""A storage backend that keeps Kestrel queues in PostgreSQL: `--storage postgres:CONNECTION`.

    factory.py      creates the storage; the only module that is imported without the driver
    description.py  checks the connection string and options of `postgres:...`
    database.py     implements `IDatabase` with three connections
    connection.py   opens a connection with its settings, closes it if the database does not reply, and maps its errors
    schema.py       tables
    ownership.py    exclusive ownership: lock, epoch, and number of the last batch
    batch_sql.py    converts a batch to SQL
    queries.py      reads queues and items, and deletes the items of removed queues in slices
"""
