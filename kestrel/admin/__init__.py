"""The admin port: statistics, the dashboard and administration of a server over HTTP."""
